#include "pool/reported_calls.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace distgrad {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

// As ranks/noting.py writes it, of a rank's only call.
std::string note(const std::string& kind, std::vector<int> shape) {
  Json call = {{"kind", kind},     {"op", "sum"},          {"dtype", "float32"},
               {"shape", shape},   {"sizes_agree", true},  {"root", -1},
               {"step", -1},       {"in_backward", false}, {"place", "step.py:8"},
               {"group", "world"}, {"ranks", {0, 1}},      {"is_between_two", false},
               {"number", 1}};
  Json json = call;
  json["entered"] = {{{"group", "world"}, {"calls", 1}}};
  json["reported_all"] = true;
  json["recent"] = {call};
  return json.dump();
}

Json rank(int rank, const Json& note, bool is_finished = false) {
  return {{"rank", rank}, {"is_finished", is_finished}, {"waits", !is_finished}, {"note", note}};
}

std::string shown(const Json& first, const Json& second) {
  return unmet_calls(Json::array({first, second}).dump());
}

TEST(ReportedCalls, WhatDoesNotFit) {
  EXPECT_EQ(shown(rank(0, note("all_reduce", {3})), rank(1, note("all_reduce", {3}))), "");
  EXPECT_THAT(shown(rank(0, note("all_reduce", {3})), rank(1, note("all_reduce", {4}))),
              HasSubstr("is in all_reduce sum of float32 [4]"));
}

TEST(ReportedCalls, WhoHasNotComeIsToldFromWhoIsNotKnown) {
  const Json waits = rank(0, note("all_reduce", {3}));
  EXPECT_EQ(shown(waits, rank(1, "")),
            "rank 1 has not entered all_reduce sum of float32 [3], where rank 0 (step.py:8) waits");
  EXPECT_THAT(shown(waits, rank(1, "", true)), HasSubstr("has finished and never entered"));
  EXPECT_EQ(shown(waits, rank(1, nullptr)), "");
}

TEST(ReportedCalls, WhatIsNoListOfNotesIsRefused) {
  for (const std::string text :
       {"", "{}", "[1]", R"([{"rank": 0}])",
        R"([{"rank": 0, "is_finished": false, "waits": true, "note": "x"}])"})
    EXPECT_THROW(unmet_calls(text), UserError) << text;
}

}  // namespace
}  // namespace distgrad
