// tests/schemas holds files against the schema, with a validator that is not ours.
#include "scenario/schema.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/collective_kind.h"

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;

TEST(Schema, HasEveryCollectiveWithItsOptions) {
  const Json schema = Json::parse(scenario_schema());
  const Json& kinds = schema["definitions"]["collective"]["anyOf"];
  ASSERT_EQ(kinds.size(), kCollectives.size());
  for (std::size_t i = 0; i < kCollectives.size(); ++i) {
    const Json& properties = kinds[i]["properties"];
    EXPECT_TRUE(properties.contains(kCollectives[i].name));
    EXPECT_EQ(properties.contains("root"), kCollectives[i].takes_root) << kCollectives[i].name;
    EXPECT_EQ(properties.contains("splits"), kCollectives[i].takes_splits) << kCollectives[i].name;
    EXPECT_EQ(properties.contains("op"), kCollectives[i].takes_op) << kCollectives[i].name;
  }
}

}  // namespace
}  // namespace distgrad
