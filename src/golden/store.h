// A folder of golden files.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "golden/golden_file.h"
#include "model/run_result.h"
#include "model/scenario.h"

namespace distgrad::golden {

class Store {
 public:
  explicit Store(std::string folder);

  const std::string& folder() const { return folder_; }

  // FOLDER/<path of the scenario>: its path within the folder that FOLDER lies in, else within the
  // working directory. Throws UserError for a scenario in neither.
  std::string path_of(const std::string& scenario) const;

  // The golden files below FOLDER whose scenario is not there, sorted.
  std::vector<std::string> without_scenario() const;

  // Puts the stored losses and gradients of the case in place of the simulation's, and their
  // bounds. The text is empty, or says why there is nothing that can be put there.
  std::string replace_truth(const Case&, const Program&, Simulation&);

 private:
  struct Loaded {
    std::optional<GoldenFile> file;
    std::string why;  // there is none that can be used
  };
  const Loaded& loaded(const Scenario&);

  std::string folder_;
  std::map<std::string, Loaded> by_scenario_;
};

// The SHA-256 of the scenario file's canonical form. Throws InvalidScenario where it cannot be
// read.
std::string scenario_sha256(const std::string& path);

// Nothing: there is no such file. Throws UserError where it cannot be read.
std::optional<std::string> read_if_there(const std::string& path);

// What Store::replace_truth() does with one record.
std::string put_in_place(const CaseRecord&, const Program&, Simulation&);

}  // namespace distgrad::golden
