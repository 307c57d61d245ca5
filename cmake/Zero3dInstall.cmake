# Installs libzero3d.so, the public headers as <zero3d/layer/file.h>, the zero3d command, and the package configuration.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS zero3d EXPORT zero3dTargets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
get_property(layers GLOBAL PROPERTY ZERO3D_LAYERS)
foreach(layer ${layers})
  get_property(headers TARGET zero3d_${layer} PROPERTY ZERO3D_PUBLIC_HEADERS)
  foreach(header ${headers})
    get_filename_component(folder "${header}" DIRECTORY)
    install(FILES "${CMAKE_SOURCE_DIR}/${layer}/${header}"
            DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/zero3d/${layer}/${folder}")
  endforeach()
endforeach()
install(EXPORT zero3dTargets NAMESPACE zero3d:: DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/zero3d")
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/zero3dConfig.cmake.in" "${CMAKE_BINARY_DIR}/zero3dConfig.cmake"
  INSTALL_DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/zero3d")
write_basic_package_version_file("${CMAKE_BINARY_DIR}/zero3dConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/zero3dConfig.cmake" "${CMAKE_BINARY_DIR}/zero3dConfigVersion.cmake"
        DESTINATION "${CMAKE_INSTALL_LIBDIR}/cmake/zero3d")
