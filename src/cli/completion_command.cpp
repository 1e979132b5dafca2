// distgrad completion bash

#include "base/error.h"
#include "cli/command.h"
#include "cli/completion.h"
#include "cli/parse_arguments.h"
#include "cli/say.h"

namespace distgrad {

ExitCode completion_command(const Arguments& arguments) {
  CLI::App app("Print the completion of a shell, to be sourced by it.", "distgrad completion");
  std::string shell;
  app.add_option("SHELL", shell, "bash")->required()->type_name(choices_text({"bash"}));
  describe(app,
           "Example, for ~/.bashrc:\n"
           "  eval \"$(distgrad completion bash)\"\n");
  if (const auto done = parse_arguments(app, arguments)) return *done;
  if (shell != "bash")
    throw UserError("completion: there is one for bash, and none for \"" + shell + "\"");
  put_raw(bash_completion());
  return ExitCode::kAsExpected;
}

}  // namespace distgrad
