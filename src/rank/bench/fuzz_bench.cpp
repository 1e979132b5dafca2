// fuzz_bench [COUNT [SEED]] measures what a fuzzed program costs in one process, by stage, in
// microseconds of processor time: drawing, reading, simulating without and with error bounds, and
// all that `fuzz --simulate` does.
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

#include "fuzz/generator.h"
#include "model/objective.h"
#include "rank/simulated_fuzz.h"
#include "rank/simulator.h"
#include "scenario/cases.h"
#include "scenario/parse.h"

namespace distgrad {
namespace {

double cpu_us() { return static_cast<double>(std::clock()) * 1e6 / CLOCKS_PER_SEC; }

struct Stage {
  const char* name;
  double us = 0;
};

void run(int count, std::uint64_t seed) {
  const fuzz::Choices choices = fuzz::default_choices();
  Stage drawing{"draw"}, reading{"read"}, first{"compile, simulate"}, plain{"simulate again"},
      bounded{"simulate with bounds"}, checking{"fuzz --simulate"};
  int invalid = 0;
  for (int i = 0; i < count; ++i) {
    const double start = cpu_us();
    const std::string text =
        fuzz::draw_program(choices, seed, static_cast<std::uint64_t>(i)).dump();
    const double drawn = cpu_us();
    const Scenario scenario = parse_scenario(text, "program");
    SimulateRequest request;
    request.program = program_for(scenario, scenario.world_sizes[0], scenario.dtypes[0]);
    request.weights = {truth_weights(request.program, scenario.objective)};
    request.with_bounds = false;
    const double read = cpu_us();
    invalid += simulate(request).invalid.has_value();
    const double compiled = cpu_us();
    simulate(request);
    const double simulated = cpu_us();
    request.with_bounds = true;
    simulate(request);
    drawing.us += drawn - start;
    reading.us += read - drawn;
    first.us += compiled - read;
    plain.us += simulated - compiled;
    bounded.us += cpu_us() - simulated;
  }
  // Another seed makes new programs, for which nothing is cached.
  for (int i = 0; i < count; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    const double start = cpu_us();
    check_simulated(fuzz::draw_program(choices, seed + 1, index).dump(), index);
    checking.us += cpu_us() - start;
  }
  for (const Stage& stage : {drawing, reading, first, plain, bounded, checking})
    std::printf("%-22s %8.1f us\n", stage.name, stage.us / count);
  const double total = drawing.us + reading.us + first.us;
  std::printf("%d programs, %d invalid; drawn, read and simulated: %.0f a second\n", count, invalid,
              count * 1e6 / total);
}

}  // namespace
}  // namespace distgrad

int main(int argc, char** argv) {
  at::set_num_threads(1);
  distgrad::run(argc > 1 ? std::atoi(argv[1]) : 2000,
                argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
}
