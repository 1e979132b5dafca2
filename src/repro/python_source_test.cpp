#include "repro/python_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "model/collective_kind.h"

namespace distgrad {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

TEST(PythonSource, EachCollectiveHasItsFunctions) {
  for (const CollectiveTraits& kind : kCollectives) {
    const std::string name(kind.name);
    for (const std::string& function :
         {"simulated_" + name, name + "_forward", name + "_adjoint", "plain_" + name})
      EXPECT_NE(Pasted().take(function), "")
          << function << ": src/python/distgrad/ranks/collectives/" << name << ".py";
  }
}

// Pasted together they are one file. NAMES and METHODS, which every module has, are never named.
TEST(PythonSource, NamesAreDefinedOnce) {
  std::map<std::string, int> times;
  for (const Definition& definition : definitions()) ++times[definition.name];
  for (const auto& [name, count] : times)
    if (name != "NAMES" && name != "METHODS") {
      EXPECT_EQ(count, 1) << name;
    }
}

TEST(PythonSource, WordsAreNamesAndAttributes) {
  const Words words("y = f(x.gathered, 1e5)  # joined\n\"\"\"summed \\\" \"\"\"\nz = 'a' + b");
  EXPECT_THAT(words.names, UnorderedElementsAre("y", "f", "x", "z", "b"));
  EXPECT_THAT(words.attributes, UnorderedElementsAre("gathered"));
}

TEST(PythonSource, ClassesHaveTheMethodsThatAreCalled) {
  Pasted pasted;
  const std::vector<std::string> sources = pasted.take_named_in("Max().jointly(xs)");
  ASSERT_EQ(sources.size(), 2u);  // Extremum, of which nothing is called, and Max
  EXPECT_THAT(sources[0], ::testing::Not(::testing::HasSubstr("def ")));
  EXPECT_THAT(sources[1], ::testing::HasSubstr("    def jointly(self, xs):\n"));
}

TEST(PythonSource, WhatIsNamedIsTakenOnceWithWhatItNames) {
  Pasted pasted;
  EXPECT_TRUE(pasted.take("summed").starts_with("def summed(x, group=None):\n"));
  EXPECT_EQ(pasted.take("summed"), "");
  std::vector<std::string> begin;
  for (const std::string& source : pasted.take_named_in("averaged(x)"))
    begin.push_back(source.substr(0, source.find('(')));
  EXPECT_THAT(begin, ElementsAre("def averaged"));  // summed has been taken
  EXPECT_TRUE(pasted.take_named_in("# averaged").empty());
}

TEST(PythonSource, DecoratorsAreThoseOfTheRanks) {
  for (const Definition& definition : definitions()) {
    EXPECT_EQ(definition.source.find("composed("), std::string::npos) << definition.name;
    EXPECT_TRUE(definition.source.ends_with("\n") && !definition.source.ends_with("\n\n"))
        << definition.name;
  }
}

}  // namespace
}  // namespace distgrad
