// distgrad gradcheck [OPTION...] FILE:FUNCTION runs `python -m distgrad.gradcheck`, which needs no
// rank program, or becomes it if this is a rank of a launcher.
#include <cstdlib>

#include "cli/command.h"
#include "cli/parse_arguments.h"
#include "cli/python_module.h"

namespace distgrad {
namespace {

constexpr const char* kGradcheckExamples =
    "Without --ranks, under torchrun, srun or mpirun, it joins their ranks.\n"
    "Exit code 0: right or disputed, 1: wrong, 2: bad arguments, 3: a rank raised,\n"
    "died or hung, or nothing could be judged.\n"
    "Examples:\n"
    "  distgrad gradcheck losses.py:GatherLayer.apply --input 'randn(4, 3)'\n"
    "  distgrad gradcheck layers.py:scaled --input 'arange(6.)+rank' --constant 3\n";

// Returns the arguments except --python, in their order, since it matters which --input comes
// before which --constant.
Arguments without_python(const Arguments& arguments) {
  Arguments kept;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--python") {
      ++i;
    } else if (!arguments[i].starts_with("--python=")) {
      kept.push_back(arguments[i]);
    }
  }
  return kept;
}

}  // namespace

ExitCode gradcheck_command(const Arguments& arguments) {
  CLI::App app(
      "Measure the backward of a function on several ranks, and compare it with its forward's "
      "derivative.",
      "distgrad gradcheck");
  std::string function, dtype, backend, python, inputs, json, objective, copies;
  std::vector<std::string> given, constants, detached;
  bool strict = false;
  int ranks = 4, directions = 16;
  double rtol = 0, timeout = 60, max_timeout = 0, total_timeout = 0;
  app.add_option("FUNCTION", function, "losses.py:GatherLayer.apply, or package.module:function")
      ->required();
  app.add_option("--ranks", ranks, "how many are started (default 4)")->type_name("N");
  app.add_option("--input", given,
                 "an argument of the function, or NAME=EXPR: randn(4,3), arange(6.)+rank, 3, None")
      ->type_name("EXPR");
  app.add_option("--constant", constants, "an argument that does not require grad")
      ->type_name("EXPR");
  app.add_option("--detached", detached,
                 "what is detached at this line, losses.py:12, is a constant; all: wherever it is")
      ->type_name("LINE");
  app.add_option("--objective", objective, "sum (default), mean or replicated")->type_name("NAME");
  app.add_option("--copies", copies, "inputs that are copies of one tensor on all ranks: x,wpe")
      ->type_name("NAMES");
  app.add_flag("--strict", strict, "exit code 1 also where the verdict is disputed");
  app.add_option("--inputs", inputs, "a function of the file that returns the arguments")
      ->type_name("NAME");
  app.add_option("--dtype", dtype, "of tensors that expressions make (default float64)")
      ->type_name("DTYPE");
  app.add_option("--backend", backend, "gloo (default) or nccl")->type_name("NAME");
  app.add_option("--rtol", rtol, "what rounding may do, relative to a gradient's largest element")
      ->type_name("X");
  app.add_option("--directions", directions, "random directions of large tensors (default 16)")
      ->type_name("N");
  app.add_option("--timeout", timeout, "seconds that a rank may wait for another (default 60)")
      ->type_name("S");
  app.add_option("--max-timeout", max_timeout, "--timeout is not more than this")->type_name("S");
  app.add_option("--total-timeout", total_timeout, "seconds for all; then the exit code is 142")
      ->type_name("S");
  app.add_option("--json", json, "the report as JSON; - is standard output")->type_name("FILE");
  app.add_option("--python", python, "the interpreter; its torch runs the function")
      ->type_name("PATH");
  describe(app, kGradcheckExamples);
  if (const auto done = parse_arguments(app, arguments)) return *done;
  const bool joins =
      app["--ranks"]->count() == 0 && std::getenv("RANK") && std::getenv("WORLD_SIZE");
  return run_python_module(python, "distgrad.gradcheck", without_python(arguments), joins);
}

}  // namespace distgrad
