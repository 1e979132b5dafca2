#include "scenario/cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "model/backends.h"
#include "model/subject_text.h"
#include "scenario/torch_version.h"
#include "scenario/world.h"

namespace distgrad {
namespace {

template <class T>
const std::vector<T>& chosen(const std::vector<T>& by_override, const std::vector<T>& by_file) {
  return by_override.empty() ? by_file : by_override;
}

template <class T>
bool has(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// Puts axes in mesh order, since the command line's order means nothing.
Objective in_mesh_order(Objective objective, const Scenario& scenario) {
  const auto place = [&](const std::string& axis) {
    return std::find_if(scenario.mesh.begin(), scenario.mesh.end(),
                        [&](const MeshAxis& a) { return a.name == axis; });
  };
  std::stable_sort(objective.axes.begin(), objective.axes.end(),
                   [&](const auto& a, const auto& b) { return place(a.first) < place(b.first); });
  return objective;
}

bool applies(const When& when, const Case& which, std::string_view torch_version) {
  return (!when.world_size || *when.world_size == which.world_size) &&
         (!when.dtype || *when.dtype == which.dtype) &&
         (when.backend.empty() || when.backend == which.backend) &&
         (when.torch.empty() || torch_condition_holds(when.torch, torch_version));
}

Expectation expectation_of(const Case& which, std::string_view torch_version) {
  const auto& subjects = which.scenario->subjects;
  const auto subject =
      std::find_if(subjects.begin(), subjects.end(),
                   [&](const ExpectedSubject& s) { return s.subject == which.subject; });
  if (subject == subjects.end() || which.objective_overridden) return {};
  for (const Expectation& expectation : subject->expectations)
    if (!expectation.when || applies(*expectation.when, which, torch_version)) return expectation;
  return {};
}

// Returns true for numbers that hold for one world size only. Closed forms, "nan" and "inf" among
// them, serve every one.
bool is_figure(const Program::Truth& truth) {
  if (std::holds_alternative<Expression>(truth.value)) return false;
  const auto* full = std::get_if<Array>(&truth.value);
  return !full || !full->shape().empty() || std::isfinite((*full)[0]);
}

bool is_pinned_for_another_world(const Expectation& expectation) {
  return !expectation.gradients.empty() && !(expectation.when && expectation.when->world_size);
}

// Removes what does not apply from the case, and notes it.
void leave_out_what_does_not_apply(Case& which) {
  const Scenario& scenario = *which.scenario;
  if (which.objective_overridden) {
    which.notes.push_back("the objective is " + spelled(which.objective) +
                          " instead of the file's " + spelled(scenario.objective) +
                          ": the file's truth and expectations do not apply");
    return;
  }
  if (!which.world_size_overridden) return;
  bool has_figures = std::any_of(scenario.truth.begin(), scenario.truth.end(), is_figure);
  if (is_pinned_for_another_world(which.expected)) {
    which.expected.gradients.clear();
    has_figures = true;
  }
  if (has_figures)
    which.notes.push_back("the world size " + std::to_string(which.world_size) +
                          " is not the file's: figures pinned for another are not checked");
}

std::string why_impossible(const Case& which, const Overrides& overrides) {
  if (const BackendRow* backend = backend_named(which.backend);
      backend && !takes_device(*backend, which.device))
    return which.backend + " does not take tensors on the device " + which.device;
  const bool calls = calls_code(which);
  if ((calls || (is_foreign_code(which.subject) && overrides.subjects.empty())) &&
      !overrides.allow_code)
    return "code that is named in a scenario file runs only with --allow-code";
  if (calls && !runs_in_python(which.subject))
    return fmt::format(
        "a step calls code, so the ranks are Python's, and these do not have {}; they have "
        "reference, in_place and python:...",
        which.subject);
  if (which.world_size_overridden) {
    const auto problems = problems_with_world(*which.scenario, which.world_size, Figures::kIgnore);
    if (!problems.empty()) return problems.front().pointer + ": " + problems.front().message;
  }
  if (const auto problem =
          problem_with_objective(*which.scenario, which.objective, which.world_size))
    return problem->message;
  const bool usual = which.backend == "gloo" && which.device == "cpu";
  return usual || !overrides.why_unavailable ? std::string() : overrides.why_unavailable(which);
}

// Names only what varies in the file or was given on the command line.
std::string id_of(const Case& which, const Overrides& overrides) {
  const Scenario& scenario = *which.scenario;
  std::string id = scenario.file;
  char separator = ':';
  const auto write = [&](bool written, const char* field, std::string_view value) {
    if (!written) return;
    id.append(1, separator).append(field).append("=").append(value);
    separator = ',';
  };
  write(scenario.subjects.size() > 1 || !overrides.subjects.empty(), "subject", which.subject);
  write(scenario.world_sizes.size() > 1 || !overrides.world_sizes.empty(), "world_size",
        std::to_string(which.world_size));
  write(scenario.dtypes.size() > 1 || !overrides.dtypes.empty(), "dtype", traits(which.dtype).name);
  write(scenario.backends.size() > 1 || !overrides.backends.empty(), "backend", which.backend);
  write(!overrides.objectives.empty(), "objective", spelled(which.objective));
  write(!overrides.devices.empty(), "device", which.device);
  write(!which.python.empty(), "python", which.python);
  return id;
}

Case make_case(Case which, const Overrides& overrides, std::string_view torch_version) {
  const Scenario& scenario = *which.scenario;
  which.objective_overridden = which.objective != scenario.objective;
  which.world_size_overridden = !has(scenario.world_sizes, which.world_size);
  which.timeout_s = overrides.timeout_s.value_or(scenario.timeout_s);
  which.expected = expectation_of(which, torch_version);
  leave_out_what_does_not_apply(which);
  which.skip_reason = why_impossible(which, overrides);
  which.id = id_of(which, overrides);
  return which;
}

std::vector<std::string> subjects_of(const Scenario& scenario) {
  std::vector<std::string> names;
  for (const ExpectedSubject& subject : scenario.subjects) names.push_back(subject.subject);
  return names;
}

// Returns one entry without a name for the default interpreter, or if none is needed.
std::vector<std::string> pythons_for(const Case& which, const Overrides& overrides) {
  const bool one = overrides.pythons.size() == 1 || has_python_ranks(which);
  return one && !overrides.pythons.empty() ? overrides.pythons : std::vector<std::string>{""};
}

// Returns the devices asked for that the backend takes. If it takes none, returns the first, so
// that the case is skipped and not missing.
std::vector<std::string> devices_for(const std::string& backend, const Overrides& overrides) {
  const BackendRow* row = backend_named(backend);
  if (overrides.devices.empty() || !row) return {std::string(row ? row->devices[0] : "cpu")};
  std::vector<std::string> taken;
  for (const std::string& device : overrides.devices)
    if (takes_device(*row, device)) taken.push_back(device);
  return taken.empty() ? std::vector<std::string>{overrides.devices.front()} : taken;
}

// Holds what varies beside the objective.
struct Transport {
  std::string backend;
  std::string device;
};

std::vector<Transport> transports_for(const Scenario& scenario, const Overrides& overrides) {
  std::vector<Transport> transports;
  for (const std::string& backend : chosen(overrides.backends, scenario.backends))
    for (const std::string& device : devices_for(backend, overrides))
      transports.push_back({backend, device});
  return transports;
}

// Resolves a file beside the scenario, whatever the working directory is.
std::string beside(const std::string& scenario, const std::string& code) {
  const SubjectPart part = read_part(code);
  if (!part.is_file()) return code;
  // An absolute path stays.
  const auto path = std::filesystem::path(scenario).parent_path() / part.place;
  return "python:" + path.lexically_normal().string() + ":" + part.name;
}

}  // namespace

bool has_python_ranks(const Case& which) {
  return is_python_subject(which.subject) || calls_code(which);
}

bool calls_code(const Case& which) { return has_code(which.scenario->steps); }

std::vector<Case> expand(const Scenario& scenario, const Overrides& overrides,
                         std::string_view torch_version) {
  std::vector<Objective> objectives = {scenario.objective};
  if (!overrides.objectives.empty()) {
    objectives.clear();
    for (const Objective& objective : overrides.objectives)
      objectives.push_back(in_mesh_order(objective, scenario));
  }
  const std::vector<std::string> subjects = subjects_of(scenario);
  std::vector<Case> cases;
  for (const std::string& subject : chosen(overrides.subjects, subjects))
    for (const int world_size : chosen(overrides.world_sizes, scenario.world_sizes))
      for (const DType dtype : chosen(overrides.dtypes, scenario.dtypes))
        for (const Transport& transport : transports_for(scenario, overrides))
          for (const Objective& objective : objectives) {
            Case which;
            which.scenario = &scenario;
            which.subject = subject;
            which.world_size = world_size;
            which.dtype = dtype;
            which.backend = transport.backend;
            which.device = transport.device;
            which.objective = objective;
            for (const std::string& python : pythons_for(which, overrides)) {
              which.python = python;
              Case made = make_case(which, overrides, torch_version);
              if (made.id.find(overrides.filter) != std::string::npos)
                cases.push_back(std::move(made));
            }
          }
  return cases;
}

Program program_for(const Scenario& scenario, int world_size, DType dtype) {
  Program program;
  program.world_size = world_size;
  program.dtype = dtype;
  program.groups = groups_for(scenario, world_size);
  program.inputs = scenario.inputs;
  program.steps = scenario.steps;
  for (Step& step : program.steps)
    if (auto* call = std::get_if<CodeCall>(&step.what)) {
      call->code = beside(scenario.file, call->code);
      call->simulate = beside(scenario.file, call->simulate);
    }
  program.loss = scenario.loss;
  program.single_device = scenario.single_device;
  program.truth = scenario.truth;
  return program;
}

Program program_for(const Case& which) {
  Program program = program_for(*which.scenario, which.world_size, which.dtype);
  if (which.objective_overridden) {
    program.truth.clear();
  } else if (which.world_size_overridden) {
    std::erase_if(program.truth, is_figure);
  }
  return program;
}

}  // namespace distgrad
