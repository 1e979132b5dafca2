// The schema against the parser: it accepts every scenario that the parser accepts, and refuses
// what is wrong in form. The validator below knows just the keywords that the schema uses, and
// refuses to go on at any other.
#include "scenario/schema.h"

#include <gtest/gtest.h>
#include <regex.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/collective_kind.h"

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

class Validator {
 public:
  explicit Validator(Json schema) : root_(std::move(schema)) {}
  bool accepts(const Json& value) const { return fits(value, root_); }

 private:
  bool fits(const Json& value, const Json& schema) const {
    for (const auto& [keyword, argument] : schema.items())
      if (!keyword_holds(keyword, argument, value, schema)) return false;
    return true;
  }

  std::size_t how_many_fit(const Json& value, const Json& schemas) const {
    return static_cast<std::size_t>(std::count_if(schemas.begin(), schemas.end(),
                                                  [&](const Json& s) { return fits(value, s); }));
  }

  bool keyword_holds(const std::string& keyword, const Json& argument, const Json& value,
                     const Json& schema) const {
    if (keyword == "$schema" || keyword == "title" || keyword == "description" ||
        keyword == "default" || keyword == "definitions" || keyword == "then" || keyword == "else")
      return true;
    if (keyword == "$ref")
      return fits(value, root_.at(Json::json_pointer(argument.get<std::string>().substr(1))));
    if (keyword == "type") return has_type(value, argument);
    if (keyword == "const") return value == argument;
    if (keyword == "enum")
      return std::find(argument.begin(), argument.end(), value) != argument.end();
    if (keyword == "anyOf") return how_many_fit(value, argument) > 0;
    if (keyword == "oneOf") return how_many_fit(value, argument) == 1;
    if (keyword == "not") return !fits(value, argument);
    if (keyword == "if") {
      const char* branch = fits(value, argument) ? "then" : "else";
      return !schema.contains(branch) || fits(value, schema[branch]);
    }
    if (keyword == "minimum") return !value.is_number() || value >= argument;
    if (keyword == "maximum") return !value.is_number() || value <= argument;
    if (keyword == "exclusiveMinimum") return !value.is_number() || value > argument;
    if (keyword == "minLength")
      return !value.is_string() || value.get<std::string>().size() >= argument;
    if (keyword == "maxLength")
      return !value.is_string() || value.get<std::string>().size() <= argument;
    if (keyword == "pattern")
      return !value.is_string() || matches(value.get<std::string>(), argument.get<std::string>());
    if (keyword == "minItems") return !value.is_array() || value.size() >= argument;
    if (keyword == "maxItems") return !value.is_array() || value.size() <= argument;
    if (keyword == "items")
      return !value.is_array() || std::all_of(value.begin(), value.end(), [&](const Json& item) {
        return fits(item, argument);
      });
    if (keyword == "uniqueItems") return !value.is_array() || all_different(value);
    if (!value.is_object()) return knows_object_keyword(keyword);
    return object_keyword_holds(keyword, argument, value, schema);
  }

  static bool knows_object_keyword(const std::string& keyword) {
    for (const char* known : {"minProperties", "maxProperties", "required", "properties",
                              "additionalProperties", "propertyNames"})
      if (keyword == known) return true;
    throw std::logic_error("the validator does not know " + keyword);
  }

  bool object_keyword_holds(const std::string& keyword, const Json& argument, const Json& value,
                            const Json& schema) const {
    if (keyword == "minProperties") return value.size() >= argument;
    if (keyword == "maxProperties") return value.size() <= argument;
    if (keyword == "required")
      return std::all_of(argument.begin(), argument.end(),
                         [&](const Json& key) { return value.contains(key.get<std::string>()); });
    for (const auto& [key, member] : value.items()) {
      const bool listed = schema.contains("properties") && schema["properties"].contains(key);
      if (keyword == "properties" && listed && !fits(member, argument[key])) return false;
      if (keyword == "propertyNames" && !fits(Json(key), argument)) return false;
      if (keyword == "additionalProperties" && !listed &&
          (argument == false || !fits(member, argument)))
        return false;
    }
    return knows_object_keyword(keyword);
  }

  // POSIX's, as g++ 12 warns of std::regex under sanitizers.
  static bool matches(const std::string& text, const std::string& pattern) {
    regex_t regex;
    if (::regcomp(&regex, pattern.c_str(), REG_EXTENDED | REG_NOSUB) != 0)
      throw std::logic_error("no pattern: " + pattern);
    const bool found = ::regexec(&regex, text.c_str(), 0, nullptr, 0) == 0;
    ::regfree(&regex);
    return found;
  }

  static bool has_type(const Json& value, const std::string& type) {
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "integer") return value.is_number_integer();
    if (type == "number") return value.is_number();
    if (type == "null") return value.is_null();
    throw std::logic_error("the validator does not know the type " + type);
  }

  static bool all_different(const Json& list) {
    for (std::size_t i = 0; i < list.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        if (list[i] == list[j]) return false;
    return true;
  }

  Json root_;
};

const Validator& validator() {
  static const Validator v(Json::parse(scenario_schema()));
  return v;
}

Json json_of(const fs::path& file) {
  std::ifstream in(file);
  return Json::parse(in, nullptr, false);
}

std::vector<fs::path> json_files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  return files;
}

const fs::path kSource(DISTGRAD_SOURCE_DIR);

TEST(Schema, AcceptsEveryGoodScenario) {
  for (const fs::path& folder : {kSource / "src/scenario/testdata/good", kSource / "scenarios"})
    for (const fs::path& file : json_files_below(folder))
      EXPECT_TRUE(validator().accepts(json_of(file))) << file;
}

TEST(Schema, RefusesWhatIsWrongInForm) {
  // Prefixes of file names whose mistakes do not need counting ranks or comparing keys.
  int refused = 0;
  for (const char* name : {"key_misspelt",
                           "key_unknown",
                           "key_objective_missing",
                           "key_world_size_missing",
                           "format_2",
                           "world_size_zero",
                           "world_size_text",
                           "world_size_twice",
                           "mesh_empty",
                           "group_flat",
                           "group_misspelt",
                           "group_size_and_stride",
                           "name_dash",
                           "input_text",
                           "input_empty_object",
                           "input_two_values",
                           "input_misspelt_key",
                           "input_requires_grad",
                           "random_no_shape",
                           "random_kind",
                           "layout_word",
                           "layout_axis_local",
                           "layout_shard_float",
                           "sync_word",
                           "step_text",
                           "step_two_names",
                           "step_empty",
                           "step_number",
                           "collective_misspelt",
                           "collective_two",
                           "collective_option_misspelt",
                           "collective_root_for_all_reduce",
                           "collective_op_misspelt",
                           "collective_factor_missing",
                           "collective_factor_without_premul",
                           "collective_splits_flat",
                           "collective_pairs_missing",
                           "collective_pairs_three",
                           "objective_misspelt",
                           "objective_rank_text",
                           "tolerance_number",
                           "tolerance_no_atol",
                           "timeout_zero",
                           "dtype_unknown",
                           "backend_unknown",
                           "single_device_no_loss",
                           "single_device_collective",
                           "subject_misspelt",
                           "subject_word",
                           "subject_no_verdict",
                           "subject_verdict_misspelt",
                           "subject_finding_misspelt",
                           "subject_when_key",
                           "subject_empty_list",
                           "truth_word"}) {
    const Json value =
        json_of(kSource / "src/scenario/testdata/invalid" / (std::string(name) + ".json"));
    ASSERT_FALSE(value.is_discarded()) << name;
    EXPECT_FALSE(validator().accepts(value)) << name;
    ++refused;
  }
  EXPECT_GE(refused, 50);
}

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
