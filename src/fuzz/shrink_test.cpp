#include "fuzz/shrink.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "scenario/parse.h"
#include "scenario/scenario_text.h"

namespace distgrad {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Shows = std::function<bool(const Json&)>;

StillShows each(Shows shows) {
  return [shows = std::move(shows)](const std::vector<Json>& documents) {
    std::vector<bool> answers;
    for (const Json& document : documents) answers.push_back(shows(document));
    return answers;
  };
}

Json scenario(const std::string& path) {
  std::ifstream file(fs::path(DISTGRAD_SOURCE_DIR) / "scenarios" / path);
  return Json::parse(file);
}

// Shrinks, and tries every single reduction of the result by brute force.
Json minimal(const Json& document, const Shows& shows) {
  EXPECT_TRUE(shows(document));
  const Shrunk shrunk = shrink(document, each(shows));
  EXPECT_TRUE(shrunk.is_minimal);
  EXPECT_TRUE(shows(shrunk.document)) << shrunk.document;
  EXPECT_NO_THROW(parse_scenario(scenario_text(shrunk.document), "shrunk"));
  for (const Json& simpler : simpler_documents(shrunk.document))
    EXPECT_FALSE(shows(simpler)) << shrunk.document << "\nis not minimal, since of\n" << simpler;
  return shrunk.document;
}

const Json* call_of(const Json& document, const char* kind) {
  for (const Json& step : document["steps"])
    if (const Json& value = *step.begin(); value.is_object() && value.contains(kind)) return &value;
  return nullptr;
}

int ranks(const Json& document) {
  if (document.contains("world_size"))
    return document["world_size"].is_number() ? document["world_size"].get<int>() : 0;
  int product = 1;
  for (const Json& size : document["mesh"]) product *= size.get<int>();
  return product;
}

TEST(Shrink, LeavesAProgramOfNothingButWhatIsShown) {
  const Json document = minimal(scenario("life/simclr.json"), [](const Json& d) {
    return call_of(d, "all_gather") != nullptr && ranks(d) != 1;
  });
  EXPECT_EQ(
      document,
      Json::parse(
          R"({ "world_size": 2, "inputs": { "w": 0.0 }, "steps": [{ "all_a": { "all_gather": "0.0" } }],
                                       "loss": "0.0", "objective": "sum" })"))
      << document;
}

TEST(Shrink, KeepsAGroupThatIsShown) {
  const Json document =
      minimal(scenario("collectives/all_gather_group_uneven.json"), [](const Json& d) {
        const Json* call = call_of(d, "all_gather");
        return call && call->contains("group") && ranks(d) >= 3;
      });
  EXPECT_EQ(ranks(document), 3);
  EXPECT_EQ(document["groups"].size(), 1u);
}

TEST(Shrink, KeepsNumbersThatDifferByRank) {
  const Json document = minimal(scenario("collectives/all_gather_gram.json"), [](const Json& d) {
    if (!d["inputs"].contains("x") || !d["inputs"]["x"].contains("by_rank")) {
      return d["inputs"].contains("x") && d["inputs"]["x"].contains("random") && ranks(d) != 1;
    }
    const Json& x = d["inputs"]["x"]["by_rank"];
    return x.size() >= 2 && x[0] != x[1];
  });
  EXPECT_EQ(document["inputs"]["x"], Json::parse(R"({ "by_rank": [0.0, 1.0] })")) << document;
}

TEST(Shrink, AdaptsWhatCountsRanks) {
  // Rank 1 sends to rank 3; all others can go.
  const Json document = minimal(
      Json::parse(R"({ "world_size": 5, "inputs": { "x": { "by_rank": [1.0, 2.0, 3.0, 4.0, 5.0] } },
                       "steps": [{ "y": { "send_recv": "x", "pairs": [[0, 1], [1, 3], [4, 2]] } },
                                 { "z": { "reduce": "y", "root": 3 } }],
                       "loss": "z", "objective": { "rank": 3 }, "truth": { "x": [0.0, 1.0, 0.0, 0.0, 0.0] } })"),
      [](const Json& d) {
        const Json* call = call_of(d, "send_recv");
        return call && (*call)["pairs"].size() >= 1 &&
               (*call)["pairs"].back()[0] != (*call)["pairs"].back()[1] &&
               d["inputs"].contains("x") && d["inputs"]["x"].contains("by_rank");
      });
  EXPECT_EQ(ranks(document), 2);
  EXPECT_EQ(document["inputs"]["x"]["by_rank"].size(), 2u);
  EXPECT_EQ((*call_of(document, "send_recv"))["pairs"].size(), 1u);
}

TEST(Shrink, CutsSplitsWithTheRanks) {
  const Json document = minimal(scenario("collectives/all_to_all_uneven.json"), [](const Json& d) {
    const Json* call = call_of(d, "all_to_all");
    return call && call->contains("splits") && ranks(d) >= 2;
  });
  EXPECT_EQ((*call_of(document, "all_to_all"))["splits"].size(), 2u);
  EXPECT_EQ((*call_of(document, "all_to_all"))["splits"][0].size(), 2u);
}

TEST(Shrink, MakesAMeshAWorld) {
  const Json document = minimal(scenario("life/megatron_mlp_sync.json"), [](const Json& d) {
    const Json* call = call_of(d, "all_reduce");
    return call && ranks(d) >= 2 && d["inputs"].contains("b") && d["inputs"]["b"].is_object() &&
           d["inputs"]["b"].contains("layout");
  });
  EXPECT_FALSE(document.contains("mesh"));
  EXPECT_EQ(document["inputs"]["b"]["layout"], "replicate");
}

TEST(Shrink, SimplifiesExpressionsToThePart) {
  Json document = scenario("life/clip_local_loss.json");
  document = minimal(document, [](const Json& d) {
    return d["loss"].get<std::string>().find("torch.log_softmax") != std::string::npos ||
           std::any_of(d["steps"].begin(), d["steps"].end(), [](const Json& step) {
             return step.dump().find("torch.log_softmax") != std::string::npos;
           });
  });
  EXPECT_EQ(document["loss"], "torch.log_softmax()");
  EXPECT_EQ(document["steps"].size(), 0u);
}

TEST(Shrink, WritesNumbersAsNumbers) {
  const Json document =
      minimal(Json::parse(R"-({
        "world_size": 2,
        "inputs": { "x": { "expr": "torch.arange(3) + 1" }, "w": { "expr": "rank", "layout": "local" } },
        "steps": [{ "y": { "all_reduce": "x" } }],
        "loss": "(y * w).sum()",
        "objective": "sum"
      })-"),
              [](const Json& d) { return d["inputs"].contains("x") && d["inputs"].contains("w"); });
  EXPECT_EQ(document["inputs"], Json::parse(R"({ "x": 0.0, "w": 0.0 })")) << document;
}

TEST(Shrink, ReducesCallsOfCode) {
  const Json document =
      minimal(Json::parse(R"-({
        "world_size": 2,
        "inputs": { "x": 1.0, "w": 2.0 },
        "steps": [{ "y": "x * w" }, { "z": { "call": "python:f.py:g", "args": ["y * y", "w"] } }],
        "loss": "z",
        "objective": "sum"
      })-"),
              [](const Json& d) { return d["steps"].dump().find("call") != std::string::npos; });
  EXPECT_EQ(document["inputs"].size(), 1u) << document;
  EXPECT_EQ(document["steps"].size(), 1u) << document;
}

TEST(Shrink, ReducesALossThatIsTheNormOfAGradient) {
  const Json document = minimal(
      Json::parse(R"-({
        "world_size": 3,
        "inputs": { "x": 1.0, "w": 2.0 },
        "steps": [{ "y": "x * w" }, { "z": { "all_reduce": "y" } }],
        "loss": "squared_gradient_norm(z * z * w)",
        "objective": "sum"
      })-"),
      [](const Json& d) {
        return ranks(d) >= 2 &&
               d["loss"].get<std::string>().find("squared_gradient_norm") != std::string::npos;
      });
  EXPECT_EQ(document["loss"], "squared_gradient_norm()") << document;
  EXPECT_EQ(document["steps"].size(), 0u) << document;
}

// Whatever the file: the kinds of its collectives stay, on as many ranks.
TEST(Shrink, IsMinimalForEveryKindOfFile) {
  std::vector<fs::path> files;
  for (const auto& entry :
       fs::recursive_directory_iterator(fs::path(DISTGRAD_SOURCE_DIR) / "scenarios"))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  ASSERT_GT(files.size(), 100u);
  for (std::size_t i = 0; i < files.size(); i += 25) {
    SCOPED_TRACE(files[i]);
    const Json document = scenario(files[i]);
    const std::size_t steps = std::min<std::size_t>(document["steps"].size(), 2);
    minimal(document,
            [&](const Json& d) { return d["steps"].size() >= steps && !d["inputs"].empty(); });
  }
}

TEST(Shrink, IsDeterministic) {
  const Json document = scenario("life/simclr.json");
  const Shows shows = [](const Json& d) { return d["steps"].size() >= 2; };
  const Shrunk first = shrink(document, each(shows)), second = shrink(document, each(shows));
  EXPECT_EQ(first.document, second.document);
  EXPECT_EQ(first.reductions, second.reductions);
  EXPECT_EQ(first.tried, second.tried);
}

TEST(Shrink, EndsWithItsBudgetAndWhenInterrupted) {
  const Json document = scenario("life/simclr.json");
  std::size_t asked = 0;
  const StillShows never = [&](const std::vector<Json>& documents) {
    asked += documents.size();
    return std::vector<bool>(documents.size(), false);
  };
  const Shrunk shrunk = shrink(document, never, {.most_tried = 40});
  EXPECT_EQ(shrunk.document, document);
  EXPECT_FALSE(shrunk.is_minimal);
  EXPECT_EQ(shrunk.tried, asked);
  EXPECT_LE(asked, 40u + 16u);
  const Shrunk interrupted = shrink(document, never, {.is_interrupted = [] { return true; }});
  EXPECT_EQ(interrupted.tried, 0u);
  EXPECT_FALSE(interrupted.is_minimal);
}

TEST(Shrink, AsksOnlyAboutWhatTheParserTakes) {
  const Json document = scenario("collectives/all_reduce_mesh.json");
  const StillShows check = [](const std::vector<Json>& documents) {
    for (const Json& d : documents) EXPECT_NO_THROW(parse_scenario(d.dump(), "candidate")) << d;
    return std::vector<bool>(documents.size(), true);
  };
  EXPECT_TRUE(shrink(document, check).is_minimal);
}

}  // namespace
}  // namespace distgrad
