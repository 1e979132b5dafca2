#include "scenario/scenario_text.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;

TEST(ScenarioText, IsAStepALineAndWhatFitsOnOne) {
  const Json document = {{"note", "n"},
                         {"world_size", {2, 3}},
                         {"inputs", {{"x", 1.0}}},
                         {"steps", {{{"a", "x"}}, {{"y", {{"all_reduce", "a"}, {"op", "sum"}}}}}},
                         {"loss", "y * y"},
                         {"objective", "sum"}};
  EXPECT_EQ(scenario_text(document), R"({
  "note": "n",
  "world_size": [2, 3],
  "inputs": { "x": 1.0 },
  "steps": [
    { "a": "x" },
    { "y": { "all_reduce": "a", "op": "sum" } }
  ],
  "loss": "y * y",
  "objective": "sum"
}
)");
}

TEST(ScenarioText, BreaksWhatDoesNotFit) {
  const std::string text =
      scenario_text({{"inputs", {{"x", {{"by_rank", std::vector<double>(40, 0.125)}}}}}});
  EXPECT_NE(text.find("\"by_rank\": [\n"), std::string::npos);
}

// Nothing is lost, and our own files are written as people wrote them, nearly.
TEST(ScenarioText, IsTheSameDocumentForEveryScenario) {
  std::size_t files = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(DISTGRAD_SOURCE_DIR "/scenarios")) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream file(entry.path());
    const Json document = Json::parse(file);
    EXPECT_EQ(Json::parse(scenario_text(document)), document) << entry.path();
    ++files;
  }
  EXPECT_GT(files, 100u);
}

}  // namespace
}  // namespace distgrad
