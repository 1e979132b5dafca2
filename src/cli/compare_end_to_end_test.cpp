// distgrad compare as a user runs it: files, exit codes, what is printed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/command_test.h"
#include "dumps/sample_dumps.h"

namespace distgrad {
namespace {

namespace fs = std::filesystem;
namespace sample = dumps::sample;
using Json = nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

class CompareEndToEnd : public CommandTest {
 protected:
  int compare(const std::string& arguments) { return distgrad("compare " + arguments); }
};

TEST_F(CompareEndToEnd, RightGradientsAreExitCodeZero) {
  write("ref.json", R"({"w": [1, 2, 3], "b": 4})");
  write("obs/rank_0.json", R"({"module.w": [1, 2, 3], "module.b": 4})");
  write("obs/rank_1.json", R"({"module.w": [1, 2, 3], "module.b": 4.000001})");
  EXPECT_EQ(compare("ref.json obs"), 0) << out_ << err_;
  EXPECT_THAT(
      out_,
      StartsWith(
          "ok    2 parameters   right, to 2.5e-07 of the norm or better (tolerance 6.1e-05)\n"));
}

TEST_F(CompareEndToEnd, WrongOnesAreNamedAndExitCodeOne) {
  write("ref.json", R"({"layers.0.w": [1, 2, 3], "layers.1.w": [4, 5, 7], "b": [1, 3]})");
  for (const int rank : {0, 1})
    write(fmt::format("obs/grads_rank{}.json", rank),
          R"({"layers.0.w": [2, 4, 6], "layers.1.w": [8, 10, 14], "b": [1, 3]})");
  EXPECT_EQ(compare("--json c.json ref.json obs/*.json"), 1) << err_;
  EXPECT_EQ(
      out_,
      "FAIL  all 2 of layers.*.w   2 times the reference (2 = the number of ranks) on every rank\n"
      "      In common: exactly the parameters with \"layers\" among the parts of their name.\n"
      "      Worst: layers.0.w[2] on rank 0: 6 where the reference has 3; it is off by 1 of its "
      "norm.\n"
      "ok    1 parameter   right, bit for bit\n"
      "\n"
      "3 parameters on 2 ranks: 1 right, 2 not.\n");
  const Json json = Json::parse(read("c.json"));
  EXPECT_EQ(json["summary"]["not_right"], 2);
  EXPECT_EQ(json["parameters"][1]["factor"], 2.0);
  EXPECT_EQ(json["groups"][0]["verdict"], "scaled");
}

TEST_F(CompareEndToEnd, OtherFormatsHaveACaseForEachParameter) {
  write("ref.json", R"({"a.w": [1, 2, 3], "b": [1, 3]})");
  write("obs/rank_0.json", R"({"a.w": [1, 2, 3], "b": [1, 3]})");
  write("obs/rank_1.json", R"({"a.w": [2, 4, 6], "b": [1, 3]})");
  EXPECT_EQ(compare("--junit j.xml --markdown m.md --sarif s.sarif --html h.html ref.json obs"), 1)
      << err_;
  EXPECT_THAT(read("j.xml"), HasSubstr("tests=\"2\" failures=\"1\" errors=\"0\""));
  EXPECT_THAT(read("m.md"), StartsWith("## distgrad: 1 not as expected, of 2 parameters\n"));
  EXPECT_THAT(read("m.md"), HasSubstr("`obs:a.w`"));
  const Json result = Json::parse(read("s.sarif"))["runs"][0]["results"];
  ASSERT_EQ(result.size(), 1u);
  EXPECT_EQ(result[0]["ruleId"], Json::parse([&] {
              compare("--json - ref.json obs");
              return out_;
            }())["groups"][0]["finding"]);
  EXPECT_THAT(read("h.html"), HasSubstr("Parameters by ranks"));
  EXPECT_THAT(read("h.html"), HasSubstr("<tr><th scope=\"row\">a.w</th><td class=\"right\" "
                                        "title=\"right\"></td><td class=\"off\""));
  EXPECT_EQ(compare("--junit j.xml --sarif j.xml ref.json obs"), 2);
  EXPECT_THAT(err_, HasSubstr("compare: --sarif: j.xml holds another report already"));
}

TEST_F(CompareEndToEnd, CountsThatTheUserGivesExplainFactors) {
  write("ref.json", R"({"w": [1, 2, 3]})");
  write("obs/rank_0.json", R"({"w": [4, 8, 12]})");
  write("obs/rank_1.json", R"({"w": [4, 8, 12]})");
  EXPECT_EQ(compare("--count micro-batches=4 --count accumulation=3 ref.json obs"), 1) << err_;
  EXPECT_THAT(out_, HasSubstr("4 times the reference (4 = the number of micro-batches)"));
  EXPECT_EQ(compare("ref.json obs"), 1) << err_;
  EXPECT_THAT(out_, HasSubstr("nothing here is 4; 4 = 2 x 2, with 2 = the number of ranks"));
}

TEST_F(CompareEndToEnd, AMatchThatShowsNothingIsToldAndFailsUnderStrict) {
  write("ref.json", R"({"w": [0, 0], "v": null})");
  write("obs.json", R"({"w": [0, 0], "v": null})");
  EXPECT_EQ(compare("--json c.json ref.json obs.json"), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("vacuous: every gradient is zero or None"));
  EXPECT_THAT(Json::parse(read("c.json"))["vacuous"].get<std::string>(),
              StartsWith("every gradient is zero or None"));
  EXPECT_EQ(compare("--strict ref.json obs.json"), 1);
  write("one.json", R"({"w": [0, 1e-30], "v": null})");
  EXPECT_EQ(compare("--strict --json c.json one.json one.json"), 0) << out_;
  EXPECT_TRUE(Json::parse(read("c.json"))["vacuous"].is_null());
}

TEST_F(CompareEndToEnd, ARankWithoutAFileIsToldAndFailsUnderStrict) {
  write("ref.json", R"({"w": [1, 2, 3]})");
  for (const int rank : {0, 2}) write(fmt::format("obs/rank_{}.json", rank), R"({"w": [1, 2, 3]})");
  EXPECT_EQ(compare("ref.json obs"), 0) << out_;
  EXPECT_THAT(out_, HasSubstr("1 right; no file of rank 1.\n"));
  EXPECT_EQ(compare("--strict --junit j.xml ref.json obs"), 1) << out_;
  EXPECT_THAT(read("j.xml"), HasSubstr("failures=\"1\""));
  EXPECT_THAT(read("j.xml"), HasSubstr("there is no file of rank 1"));
}

TEST_F(CompareEndToEnd, WhatIsNearCountsUnlessItIsForgiven) {
  write("ref.json", R"({"w": [1.01, 2.03, 3.07, 4.11]})");
  write("obs.json", R"({"w": [1.01, 2.03, 3.07, 4.13]})");
  EXPECT_EQ(compare("ref.json obs.json"), 1) << out_;
  EXPECT_THAT(out_, HasSubstr("0 right, 1 near, not right.\n"));
  write("obs.json", R"({"w": [1.01, 2.03, 3.07, 4.5]})");
  EXPECT_EQ(compare("--dtype bfloat16 ref.json obs.json"), 0) << out_;
  EXPECT_THAT(out_, HasSubstr("0 right, 1 near, which is not counted.\n"));
}

TEST_F(CompareEndToEnd, ParametersThatOnlySomeRanksHold) {
  write("ref.json", R"({"a": [1, 2], "b": [3, 4], "c": [5, 6]})");
  // Two stages: told from what the other rank holds in its place.
  write("stages/rank_0.json", R"({"a": [1, 2], "b": [3, 4]})");
  write("stages/rank_1.json", R"({"c": [5, 6]})");
  EXPECT_EQ(compare("ref.json stages"), 0) << out_;
  EXPECT_THAT(out_, HasSubstr("2 parameters on rank 0 alone; in their place are others"));
  // A rank that holds less has lost something, unless the user says that it is meant.
  write("less/rank_0.json", R"({"a": [1, 2], "b": [3, 4], "c": [5, 6]})");
  write("less/rank_1.json", R"({"a": [1, 2], "b": [3, 4]})");
  EXPECT_EQ(compare("ref.json less"), 1);
  EXPECT_THAT(out_, HasSubstr("missing on rank 1, right on rank 0"));
  EXPECT_EQ(compare("--partly-held 'c*' ref.json less"), 0) << out_;
}

TEST_F(CompareEndToEnd, JsonOnStandardOutputIsAlone) {
  write("ref.json", R"({"w": [1, 2]})");
  EXPECT_EQ(compare("--json - ref.json ref.json"), 0);
  EXPECT_EQ(Json::parse(out_)["kind"], "gradient-comparison");
}

TEST_F(CompareEndToEnd, TheUsersErrorsAreOneLineAndExitCodeTwo) {
  write("ref.json", R"({"w": [1, 2]})");
  write("other.json", R"({"v": [1, 2]})");
  write("cut.safetensors", "1234");
  const std::vector<std::pair<std::string, std::string>> rows = {
      {"ref.json", "compare: OBSERVED is required"},
      {"ref.json nothing.json", "nothing.json: there is no such file or folder"},
      {"ref.json cut.safetensors", "cut.safetensors: not a safetensors file: 4 bytes long"},
      {"ref.json other.json", "have no parameter in common: \"w\" there, \"v\" here"},
      {"--count 4 ref.json ref.json", "--count \"4\" is not NAME=NUMBER"},
      {"--count a=x ref.json ref.json", "--count \"a=x\" is not NAME=NUMBER"},
      {"--reduce w=average ref.json ref.json", "there are sum, mean, max, min, product"},
      {"--rtol x ref.json ref.json", "--rtol \"x\" is not a number of at least 0"},
      {"--dtype float8 ref.json ref.json", "there are float64, float32, bfloat16, float16"},
      {"--rtool 1 ref.json ref.json", "did you mean \"--rtol\"?"},
  };
  for (const auto& [arguments, message] : rows) {
    EXPECT_EQ(compare(arguments), 2) << arguments;
    EXPECT_THAT(err_, HasSubstr(message));
    EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
    EXPECT_EQ(out_, "");
  }
}

TEST_F(CompareEndToEnd, OfTwoMissingFilesTheFirstIsNamed) {
  EXPECT_EQ(compare("first second"), 2);
  EXPECT_EQ(err_, "distgrad: first: there is no such file or folder\n");
}

}  // namespace
}  // namespace distgrad
