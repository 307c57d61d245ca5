// The zero3d command: dispatches to the subcommands and turns errors into one line on stderr and
// exit code 1. What it prints and cannot write is an error too.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>

#include "command.h"
#include "zero3d/core/error.h"

namespace {

/// A file opened while one of these is closed would get its number, and with it what is printed.
void open_standard_descriptors() {
  for (;;) {
    const int descriptor = ::open("/dev/null", O_RDWR);
    if (descriptor > STDERR_FILENO) ::close(descriptor);
    if (descriptor < 0 || descriptor > STDERR_FILENO) return;
  }
}

/// Broken pipes and size limits are errors of the write, which say what was written and where.
void ignore_signals_of_writes() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

/// `output`: there is a standard output. Runs do without, what only prints does not.
int run(int argc, char** argv, bool output) {
  CLI::App app{"zero3d: train large models with ZeRO, from an ordinary ds_config file", "zero3d"};
  app.set_version_flag("--version", "zero3d " ZERO3D_VERSION, "Print the version and end");
  app.require_subcommand(0, 1);
  zero3d::tools::add_train(app);
  zero3d::tools::add_validate(app);
  zero3d::tools::add_diff(app);
  zero3d::tools::add_export(app);
  zero3d::tools::add_config_docs(app);
  zero3d::tools::add_bench(app);
  zero3d::tools::add_inspect(app);
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) std::cout << app.help();
    if (!output && (app.got_subcommand("validate") || app.got_subcommand("config-docs") ||
                    app.got_subcommand("inspect") || app.got_subcommand("diff")))
      throw zero3d::Error(zero3d::ErrorKind::kInvalid,
                          "standard output is closed, and what this command prints is all it does");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // --help is no failure
  } catch (const zero3d::tools::ExitStatus& status) {
    return status.code;
  } catch (const std::exception& error) {
    std::cout.flush();
    std::cerr << "zero3d: " << zero3d::describe(error) << '\n';
    return 1;
  }
  return 0;
}

/// `code`, or 1 when something printed did not arrive.
int after_output(int code) {
  errno = 0;
  const bool flushed = std::cout.flush().good() && std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return code;
  std::cerr << "zero3d: standard output could not be written"
            << (errno != 0 ? std::string(" (") + std::strerror(errno) + ")" : "")
            << "; some of what was printed is lost\n";
  return code == 0 ? 1 : code;
}

}  // namespace

int main(int argc, char** argv) {
  const bool output = ::fcntl(STDOUT_FILENO, F_GETFD) >= 0;
  open_standard_descriptors();
  ignore_signals_of_writes();
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // lines stay whole beside those of other writers
  return after_output(run(argc, argv, output));
}
