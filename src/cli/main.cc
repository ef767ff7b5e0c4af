// The `kdtree` command: parses the command line, runs one subcommand, turns errors into one line and an exit
// code.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>

#include <fmt/ranges.h>

#include "cli/command.h"
#include "cli/exit_codes.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/suggest.h"
#include "kdtree/kdtree.h"

namespace kdtree::cli {
namespace {

constexpr const char* kDescription =
    "Speculative decoding with draft trees: generate text, build and draw trees, record verify steps, check "
    "and time backends.";

constexpr const char* kFooter =
    "Examples:\n"
    "  kdtree generate --model target --draft drafter --prompt 'def main():'\n"
    "  kdtree tree --random --svg tree.svg\n"
    "  kdtree make-case --prefix 100,37 --nodes 16 --with-output step.safetensors\n"
    "  kdtree verify step.safetensors\n"
    "\n"
    "Exit codes: 0 ok, 1 verification failed, 2 usage, 3 input file, 4 not available here, 70 internal,\n"
    "130 interrupted.\n";

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

int usage_error(const std::string& message) {
  print_error(message);
  return kExitUsage;
}

int finish(Result<int> result) {
  const Status written = finish_output();
  if (interrupted()) {
    std::fputs("kdtree: interrupted\n", stderr);
    return kExitInterrupted;
  }
  if (result && !written) result = tl::unexpected<Error>(written.error());
  if (result) return *result;
  print_error(result.error().message);
  return exit_code_of(result.error().code);
}

int run(int argc, char** argv) {
  install_signal_handlers();
  CLI::App app(kDescription, "kdtree");
  app.footer(kFooter);
  app.set_version_flag("--version", fmt::format("kdtree {}", kdtree_version()));
  app.require_subcommand(1);
  Action action;
  add_generate(app, action);
  add_tune(app, action);
  add_capture(app, action);
  add_info(app, action);
  add_tree(app, action);
  add_make_case(app, action);
  add_verify(app, action);
  add_bench(app, action);

  const std::vector<std::string> names = subcommand_names(app);
  const std::string list = fmt::format("{}", fmt::join(names, ", "));
  if (argc < 2)
    return usage_error(fmt::format("no subcommand, expected one of {} (see kdtree --help)", list));
  const std::string first = argv[1];
  if (!first.starts_with("-") && std::find(names.begin(), names.end(), first) == names.end()) {
    return usage_error(
        fmt::format("subcommand '{}', expected one of {}{}", first, list, suggestion(first, names)));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help_or_version) {
    app.exit(help_or_version);
    return finish(kExitOk);
  } catch (const CLI::ParseError& error) {
    return usage_error(error.what());
  }
  return finish(action());
}

}  // namespace
}  // namespace kdtree::cli

int main(int argc, char** argv) {
  try {
    return kdtree::cli::run(argc, argv);
  } catch (const std::bad_alloc&) {
    kdtree::cli::print_error("out of memory");
    return kdtree::cli::kExitUnavailable;
  } catch (const std::exception& error) {
    kdtree::cli::print_error(fmt::format("internal: {}", error.what()));
    return kdtree::cli::kExitInternal;
  }
}
