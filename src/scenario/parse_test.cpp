#include "scenario/parse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "scenario/cases.h"

namespace distgrad {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

const std::string kGood = std::string(DISTGRAD_SOURCE_DIR) + "/src/scenario/testdata/good/";

const Scenario& everything() {
  static const Scenario scenario = load_scenario(kGood + "everything.json");
  return scenario;
}

const Input& input(const std::string& name) {
  for (const Input& i : everything().inputs)
    if (i.name == name) return i;
  throw std::logic_error("no input " + name);
}

const CollectiveCall& call(const std::string& step) {
  for (const Step& s : everything().steps)
    if (s.name == step) return *s.collective();
  throw std::logic_error("no step " + step);
}

std::vector<double> values(const Array& array) {
  return {array.values().begin(), array.values().end()};
}

TEST(Parse, ReadsTheWorldInTheFilesOrder) {
  const Scenario& s = everything();
  EXPECT_EQ(s.name, "every key of the format");
  EXPECT_THAT(s.world_sizes, ElementsAre(4));
  ASSERT_EQ(s.mesh.size(), 2u);
  EXPECT_EQ(s.mesh[0].name, "tp");
  ASSERT_EQ(s.groups.size(), 3u);
  EXPECT_EQ(s.groups[0].size, 2);
  EXPECT_EQ(s.groups[1].stride, 3);
  EXPECT_THAT(s.groups[2].listed, ElementsAre(ElementsAre(3, 1, 0), ElementsAre(2)));
  EXPECT_THAT(s.dtypes, ElementsAre(DType::kFloat32, DType::kFloat64));
  EXPECT_THAT(s.backends, ElementsAre("gloo", "nccl"));
  EXPECT_EQ(s.timeout_s, 2.5);
}

TEST(Parse, ReadsInputs) {
  EXPECT_EQ(std::get<Array>(input("bare").value).shape(), Shape{});
  EXPECT_EQ(std::get<Array>(input("nested").value).shape(), (Shape{2, 3}));
  EXPECT_TRUE(std::isnan(std::get<Array>(input("nested").value)[5]));
  EXPECT_FALSE(input("value").requires_grad);
  EXPECT_EQ(std::get<Array>(input("value").value)[0], -INFINITY);
  const auto& by_rank = std::get<std::vector<Array>>(input("by_rank").value);
  EXPECT_EQ(by_rank[2].shape(), (Shape{1, 1}));
  EXPECT_EQ(by_rank[3].shape(), Shape{0});
  EXPECT_EQ(std::get<Expression>(input("expr").value).text, "torch.ones([rank + 1])");
  EXPECT_EQ(std::get<Expression>(input("expr").value).pointer, "/inputs/expr/expr");
  const auto& random = std::get<RandomSpec>(input("random").value);
  EXPECT_EQ(std::get<std::int64_t>(random.shape[0]), 2);
  EXPECT_EQ(std::get<Expression>(random.shape[1]).pointer, "/inputs/random/random/shape/1");
  EXPECT_EQ(random.kind, RandomSpec::Kind::kUniform);
  EXPECT_EQ(random.low, -0.5);
  EXPECT_EQ(random.seed, 7u);
}

TEST(Parse, ReadsLayoutsInMeshOrder) {
  const Input& weight = input("weight");
  ASSERT_EQ(weight.layout.size(), 2u);
  EXPECT_EQ(weight.layout[0].axis, "tp");
  EXPECT_EQ(weight.layout[0].layout.kind, Layout::Kind::kShard);
  EXPECT_EQ(weight.layout[0].layout.dim, -1);
  EXPECT_EQ(weight.layout[1].layout.kind, Layout::Kind::kReplicate);
  EXPECT_TRUE(input("bare").is_local());
  EXPECT_FALSE(input("cut").is_local());
  EXPECT_EQ(input("cut").layout[0].axis, "");
}

TEST(Parse, ReadsSyncsAlongReplicatedAxes) {
  EXPECT_THAT(input("weight").sync, ElementsAre(std::pair("dp", Input::Sync::kMean)));
  EXPECT_THAT(input("normal").sync, ElementsAre(std::pair("", Input::Sync::kSum)));
}

TEST(Parse, AWordOfSyncMeansEveryReplicatedAxis) {
  // clang-format off
  const Scenario s = parse_scenario(R"json({
    "mesh": { "dp": 2, "cp": 2, "tp": 2 },
    "inputs": {
      "w": { "value": [1, 2], "layout": { "dp": "replicate", "cp": "replicate", "tp": { "shard": 0 } } }
    },
    "steps": [], "loss": "w.sum()", "objective": "sum", "sync": { "w": "mean" }
  })json", "x.json");
  // clang-format on
  EXPECT_THAT(s.inputs[0].sync, ElementsAre(std::pair("dp", Input::Sync::kMean),
                                            std::pair("cp", Input::Sync::kMean)));
}

TEST(Parse, ReadsCollectives) {
  EXPECT_EQ(call("b").op, ReduceOp::kPremulSum);
  EXPECT_EQ(call("b").factor, 0.5);
  EXPECT_EQ(call("b").group, "dp");
  EXPECT_EQ(call("b").operand.pointer, "/steps/1/b/all_reduce");
  EXPECT_EQ(call("c").root, 3);
  EXPECT_FALSE(call("e").dim);
  EXPECT_EQ(call("f").dim, -1);
  EXPECT_THAT(call("h").splits, ElementsAre(ElementsAre(3, 1)));
  EXPECT_THAT(call("i").splits, ElementsAre(ElementsAre(1, 5), ElementsAre(0, 6)));
  EXPECT_THAT(call("j").pairs, ElementsAre(std::pair(0, 1), std::pair(0, 2), std::pair(3, 3)));
}

TEST(Parse, ReadsObjectiveTruthAndTolerance) {
  const Scenario& s = everything();
  EXPECT_EQ(spelled(s.objective), "tp=replicated+dp=mean");  // mesh order
  EXPECT_EQ(s.tolerance.kind, Tolerance::Kind::kExplicit);
  EXPECT_EQ(s.tolerance.rtol, 1e-5);
  ASSERT_EQ(s.truth.size(), 4u);
  EXPECT_EQ(std::get<std::vector<Array>>(s.truth[0].value).size(), 4u);
  EXPECT_EQ(std::get<Expression>(s.truth[1].value).text, "2 * expr");
  EXPECT_THAT(values(std::get<Array>(s.truth[2].value)), ElementsAre(0, 1));
  EXPECT_TRUE(std::isnan(std::get<Array>(s.truth[3].value)[0]));
  ASSERT_TRUE(s.single_device);
  EXPECT_EQ(s.single_device->steps[1].pointer, "/single_device/steps/1/z");
}

TEST(Parse, ReadsExpectations) {
  const auto& torch_nn = everything().subjects.at(1);
  EXPECT_EQ(torch_nn.subject, "torch_nn");
  ASSERT_EQ(torch_nn.expectations.size(), 4u);
  EXPECT_EQ(torch_nn.expectations[0].message, "no GPU");
  EXPECT_EQ(torch_nn.expectations[1].when->torch, ">=2.13");
  EXPECT_EQ(torch_nn.expectations[1].collective, "all_reduce");
  const auto& gradients = torch_nn.expectations[2].gradients;
  ASSERT_EQ(gradients.size(), 1u);
  EXPECT_FALSE(gradients[0].second[1]);
  EXPECT_EQ(gradients[0].second[2]->shape(), Shape{2});
  EXPECT_FALSE(torch_nn.expectations[3].when);
}

TEST(Parse, GivesDefaults) {
  const Scenario s = load_scenario(kGood + "minimal.json");
  EXPECT_EQ(s.name, "minimal");
  EXPECT_THAT(s.dtypes, ElementsAre(DType::kFloat64));
  EXPECT_THAT(s.backends, ElementsAre("gloo"));
  EXPECT_EQ(s.timeout_s, 30);
  EXPECT_EQ(s.tolerance.kind, Tolerance::Kind::kDerived);
  ASSERT_EQ(s.subjects.size(), 1u);
  EXPECT_EQ(s.subjects[0].subject, "reference");
  EXPECT_TRUE(s.inputs[0].requires_grad);
}

TEST(Parse, RemembersThePlacesThatLaterMessagesName) {
  const auto& positions = everything().positions;
  for (const char* pointer :
       {"/steps/0/a", "/steps/1/b/all_reduce", "/inputs/random/random/shape/1", "/loss",
        "/truth/expr", "/single_device/loss", "/subjects/torch_nn", "/groups/listed",
        "/inputs/bare"})
    EXPECT_TRUE(positions.contains(pointer)) << pointer;
  EXPECT_EQ(positions.at("/steps/0/a").line, 32);
  EXPECT_EQ(positions.at("/steps/0/a").column, 12);
}

TEST(Parse, TellsAtMostTwentyProblems) {
  std::string text =
      "{\"world_size\": 2, \"inputs\": {\"x\": 1}, \"steps\": [], \"loss\": \"x\", \"objective\": "
      "\"sum\"";
  for (int i = 0; i < 50'000; ++i) text += ", \"unknown " + std::to_string(i) + "\": 0";
  try {
    parse_scenario(text + "}", "x.json");
    FAIL() << "no problem found";
  } catch (const InvalidScenario& e) {
    EXPECT_EQ(e.problems().size(), 20u);
    EXPECT_EQ(e.problems()[0].pointer, "/unknown 0");
  }
}

class Files : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "distgrad-parse-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string message_for(const fs::path& file) {
    try {
      load_scenario(file.string());
    } catch (const InvalidScenario& e) {
      return e.what();
    }
    return "";
  }

  fs::path folder_;
};

TEST_F(Files, ThatAreMissingNameTheirNeighbour) {
  std::ofstream(folder_ / "gather.json") << "{}";
  EXPECT_EQ(message_for(folder_ / "gahter.json"),
            (folder_ / "gahter.json: there is no such file or folder; did you mean \"").string() +
                (folder_ / "gather.json").string() + "\"?");
  EXPECT_THAT(message_for(folder_ / "gather"),
              HasSubstr("did you mean \"" + (folder_ / "gather.json").string() + "\"?"));
  EXPECT_EQ(message_for(folder_ / "none/x.json"),
            (folder_ / "none/x.json: there is no such file or folder").string());
  EXPECT_THAT(message_for(folder_ / "gather.json/x.json"),
              HasSubstr("there is no such file or folder"));
}

TEST_F(Files, ThatArePythonAreForAnAudit) {
  EXPECT_THAT(message_for(folder_ / "losses.py"),
              HasSubstr("`distgrad audit python:" + (folder_ / "losses.py").string() + "`"));
}

TEST_F(Files, ThatAreFoldersOrDevicesAreRefused) {
  EXPECT_THAT(message_for(folder_), HasSubstr("is a folder; name a scenario file in it"));
  EXPECT_THAT(message_for("/dev/zero"), HasSubstr("is no regular file"));
}

TEST_F(Files, OfAGigabyteAreRefusedUnread) {
  const fs::path large = folder_ / "large.json";
  std::ofstream(large) << "{";
  fs::resize_file(large, std::uintmax_t{1} << 30);  // a sparse file
  EXPECT_EQ(message_for(large), large.string() + ": the file is larger than 64 MiB");
}

TEST_F(Files, WithoutPermissionSaySo) {
  const fs::path file = folder_ / "secret.json";
  std::ofstream(file) << "{}";
  ::chmod(file.c_str(), 0);
  constexpr uid_t kNobody = 65534;
  const uid_t self = ::geteuid();  // root may read everything, so it steps down
  if (self == 0) {
    ASSERT_EQ(::seteuid(kNobody), 0);
  }
  const std::string message = message_for(file);
  ASSERT_EQ(::seteuid(self), 0);
  EXPECT_EQ(message, file.string() + ": cannot be read: Permission denied");
}

TEST_F(Files, ThatMayNeverEndAreRefused) {
  const fs::path pipe = folder_ / "pipe.json";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(message_for(pipe.string()), HasSubstr("is no regular file"));
  EXPECT_THAT(message_for("/proc/self/status"), HasSubstr("is no regular file"));
}

}  // namespace
}  // namespace distgrad
