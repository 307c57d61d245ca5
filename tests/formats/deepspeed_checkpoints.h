// What the tests of DeepSpeed's checkpoints share: values by name, and a checkpoint that a test
// writes itself.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "zero3d/core/error.h"
#include "zero3d/formats/deepspeed_checkpoint.h"
#include "zero3d/tests/formats/torch_writer.h"
#include "zero3d/tests/support/temporary_folder.h"

namespace zero3d::test {

namespace fs = std::filesystem;
using Floats = std::vector<float>;

inline void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' not in: " << text;
}

inline View view_of(Floats& values) {
  return View(reinterpret_cast<std::byte*>(values.data()), DType::f32,
              Shape{static_cast<std::int64_t>(values.size())});
}

inline std::string bytes_of(const Floats& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

inline Floats values(const DeepspeedCheckpoint& checkpoint, const std::string& name,
                     std::string_view what = DeepspeedCheckpoint::kMaster, std::int64_t first = 0,
                     std::int64_t count = -1) {
  const DeepspeedParameter* parameter = checkpoint.find(name);
  if (parameter == nullptr) throw_invalid(name + " is not there");
  Floats out(static_cast<std::size_t>(count < 0 ? parameter->numel() - first : count));
  checkpoint.read(*parameter, what, first, view_of(out));
  return out;
}

/// Checkpoints that this test writes.
class WrittenCheckpoint : public testing::Test {
 protected:
  void write(const std::string& name, TorchWriter& writer, const P& root) {
    fs::create_directories((folder_.path() / "step" / name).parent_path());
    folder_.write("step/" + name, writer.archive(root));
  }
  std::string path() const { return (folder_.path() / "step").string(); }
  std::string refusal() const {
    return message_of<IoError>([&] { DeepspeedCheckpoint checkpoint(path()); });
  }
  static P counters(P::Entries more) {
    P::Entries entries = {{"global_steps", P::integer(3)}, {"ds_version", P::text("0.12.0")}};
    entries.insert(entries.end(), more.begin(), more.end());
    return P::dict(entries);
  }
  static P group(std::vector<std::int64_t> ids) {
    return P::dict({{"lr", P::number(0.5)}, {"params", P::list(P::integers(ids))}});
  }
  static Floats iota(std::size_t count, float first) {
    Floats numbers(count);
    std::iota(numbers.begin(), numbers.end(), first);
    return numbers;
  }
  TemporaryFolder folder_;
};

}  // namespace zero3d::test
