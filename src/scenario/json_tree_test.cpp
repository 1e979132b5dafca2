#include "scenario/json_tree.h"

#include <gtest/gtest.h>

#include <cmath>

namespace distgrad {
namespace {

std::string place(const SourcePosition& p) {
  return std::to_string(p.line) + ":" + std::to_string(p.column);
}

std::string first_problem(std::string_view text) {
  std::vector<JsonProblem> problems;
  const JsonTree tree(text, problems);
  return problems.empty()
             ? ""
             : place(problems[0].position) + " " + problems[0].pointer + " " + problems[0].message;
}

TEST(JsonTree, KnowsWhereEveryValueAndKeyStands) {
  constexpr std::string_view kText =
      "{ \"a\\\"b\" : [10, -2.5e3 ,\n  \"x,:\", {\"k\":true}] ,\n\"z\":null}";
  std::vector<JsonProblem> problems;
  const JsonTree tree(kText, problems);
  ASSERT_TRUE(tree.root());
  const std::vector<JsonValue> members = tree.root()->children();
  ASSERT_EQ(members.size(), 2u);
  EXPECT_EQ(members[0].key(), "a\"b");
  EXPECT_EQ(place(members[0].key_position()), "1:3");
  EXPECT_EQ(place(members[0].position()), "1:12");
  const std::vector<JsonValue> items = members[0].children();
  ASSERT_EQ(items.size(), 4u);
  EXPECT_EQ(place(items[0].position()), "1:13");
  EXPECT_EQ(items[0].integer(), 10);
  EXPECT_EQ(place(items[1].position()), "1:17");
  EXPECT_EQ(items[1].number(), -2500);
  EXPECT_FALSE(items[1].integer());
  EXPECT_EQ(place(items[2].position()), "2:3");
  EXPECT_EQ(items[2].text(), "x,:");
  EXPECT_EQ(place(items[3].member("k")->position()), "2:15");
  EXPECT_EQ(items[3].member("k")->pointer(), "/a\"b/3/k");
  EXPECT_EQ(place(members[1].position()), "3:5");
  EXPECT_EQ(members[1].kind(), JsonKind::kNull);
}

TEST(JsonTree, KeepsTheOrderOfMembers) {
  std::vector<JsonProblem> problems;
  const JsonTree tree(R"({"tp": 2, "dp": 3, "a": 1})", problems);
  std::string keys;
  for (const JsonValue& member : tree.root()->children()) keys += member.key() + " ";
  EXPECT_EQ(keys, "tp dp a ");
}

TEST(JsonTree, KeepsTheFirstOfDuplicateKeysAndReportsTheRest) {
  std::vector<JsonProblem> problems;
  const JsonTree tree(R"({"a": 1, "a": {"b": 2, "b": 3}, "\u0061": 4})", problems);
  ASSERT_EQ(problems.size(), 3u);
  EXPECT_EQ(problems[0].pointer, "/a");
  EXPECT_EQ(problems[1].pointer, "/a/b");
  EXPECT_EQ(problems[2].message, "duplicate key \"a\"; it stands in line 1 already");
  EXPECT_EQ(tree.root()->size(), 1u);
  EXPECT_EQ(tree.root()->member("a")->integer(), 1);
}

TEST(JsonTree, FindsManyDuplicatesInOneObject) {
  std::string text = "{";
  for (int i = 0; i < 2000; ++i) text += "\"key number " + std::to_string(i % 1999) + "\": 0, ";
  text += "\"end\": 0}";
  std::vector<JsonProblem> problems;
  const JsonTree tree(text, problems);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(problems[0].pointer, "/key number 0");
}

TEST(JsonTree, ReadsNumbersExactly) {
  std::vector<JsonProblem> problems;
  const JsonTree tree(
      "[-0, 0.1, 1e-400, 5e-324, 9007199254740993, 9223372036854775807, 9223372036854775808]",
      problems);
  const std::vector<JsonValue> items = tree.root()->children();
  EXPECT_TRUE(std::signbit(items[0].number()));
  EXPECT_EQ(items[1].number(), 0.1);
  EXPECT_EQ(items[2].number(), 0);
  EXPECT_EQ(items[3].number(), 5e-324);
  EXPECT_EQ(items[4].integer(), 9007199254740993);
  EXPECT_EQ(items[5].integer(), INT64_MAX);
  EXPECT_FALSE(items[6].integer());
  EXPECT_EQ(items[6].number(), 9223372036854775808.0);
}

TEST(JsonTree, FindsTheNearestValueOfAPointer) {
  std::vector<JsonProblem> problems;
  const JsonTree tree(R"({"a/b": {"c": [1, [2]]}})", problems);
  EXPECT_EQ(tree.nearest("/a~1b/c/1/0").pointer(), "/a~1b/c/1/0");
  EXPECT_EQ(tree.nearest("/a~1b/c/5").pointer(), "/a~1b/c");
  EXPECT_EQ(tree.nearest("/x/y").pointer(), "");
}

TEST(JsonTree, RefusesDeepNestingWithoutUsingTheStack) {
  const std::size_t depth = 100'000;
  EXPECT_EQ(first_problem(std::string(depth, '[') + std::string(depth, ']')),
            "1:201  nested more than 200 deep");
  std::string objects;
  for (std::size_t i = 0; i < depth; ++i) objects += "{\"a\":";
  EXPECT_EQ(first_problem(objects), "1:1001  nested more than 200 deep");
  EXPECT_EQ(first_problem(std::string(200, '[') + std::string(200, ']')), "");
}

TEST(JsonTree, RefusesMoreValuesThanAFileNeeds) {
  std::string text = "[0";
  for (std::size_t i = 0; i < kMaxJsonValues; ++i) text += ",0";
  EXPECT_NE(first_problem(text + "]").find("more than 4000000 values"), std::string::npos);
}

TEST(JsonTree, AcceptsEveryFormOfText) {
  std::vector<JsonProblem> problems;
  const JsonTree tree(R"(["\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00", "é"])", problems);
  ASSERT_TRUE(problems.empty());
  EXPECT_EQ(tree.root()->children()[0].text(), "\"\\/\b\f\n\r\té\U0001F600");
  EXPECT_EQ(tree.root()->children()[1].text(), "é");
}

}  // namespace
}  // namespace distgrad
