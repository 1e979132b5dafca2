#include "report/schema.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "model/collective_kind.h"
#include "model/dtype.h"
#include "model/findings.h"

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;

Json type(const char* name) { return {{"type", name}}; }
Json ref(const std::string& name) { return {{"$ref", "#/$defs/" + name}}; }
Json list_of(Json items) { return {{"type", "array"}, {"items", std::move(items)}}; }
Json one_of(std::vector<std::string> names) { return {{"enum", std::move(names)}}; }
Json or_null(Json schema) { return {{"anyOf", Json::array({std::move(schema), type("null")})}}; }
Json described(Json schema, const char* text) {
  schema["description"] = text;
  return schema;
}
Json at_least(int minimum) { return {{"type", "integer"}, {"minimum", minimum}}; }

// Readers must bear fields that are not here: a later version may add some. Those listed in
// `optional` may be absent.
Json object(Json properties, const std::vector<std::string>& optional = {}) {
  Json required = Json::array();
  for (const auto& [key, value] : properties.items())
    if (std::find(optional.begin(), optional.end(), key) == optional.end()) required.push_back(key);
  return {
      {"type", "object"}, {"properties", std::move(properties)}, {"required", std::move(required)}};
}

Json any_key(Json value) {
  return {{"type", "object"}, {"additionalProperties", std::move(value)}};
}

Json number() {
  return {{"description", "A number; non-finite ones are strings."},
          {"anyOf", Json::array({type("number"), one_of({"nan", "inf", "-inf"})})}};
}

Json tensor() {
  return {{"description",
           "Nested arrays; over 1,000 elements, without --full, a summary; null: a missing "
           "gradient (None)."},
          {"anyOf", Json::array({ref("number"), list_of(ref("tensor")), ref("tensor_summary"),
                                 type("null")})}};
}

Json tensor_summary() {
  const Json element = object(
      {{"index", list_of(at_least(0))},
       {"value", ref("number")},
       {"abs_error", described(ref("number"), "Against the other side: truth or observed.")}},
      {"abs_error"});
  return object(
      {{"shape", list_of(at_least(0))},
       {"norms", object({{"l1", ref("number")}, {"l2", ref("number")}, {"max", ref("number")}})},
       {"worst", described(list_of(element), "The elements furthest off, worst first.")}});
}

Json rules() {
  std::vector<std::string> names;
  for (const FindingRow& row : kFindings) names.emplace_back(row.name);
  return one_of(std::move(names));
}

Json collectives() {
  std::vector<std::string> names;
  for (const CollectiveTraits& traits : kCollectives) names.emplace_back(traits.name);
  return one_of(std::move(names));
}

Json dtypes() {
  std::vector<std::string> names;
  for (const DTypeTraits& traits : kDTypes) names.emplace_back(traits.name);
  return one_of(std::move(names));
}

Json gradient() {
  const Json place = object({{"rank", at_least(0)}, {"index", list_of(at_least(0))}});
  return object(
      {{"layout", type("string")},
       {"truth", described(object({{"by_rank", list_of(ref("tensor"))}, {"full", ref("tensor")}},
                                  {"by_rank", "full"}),
                           "by_rank for local inputs, full for the others.")},
       {"observed",
        described(
            or_null(
                object({{"by_rank", list_of(ref("tensor"))}, {"full", ref("tensor")}}, {"full"})),
            "by_rank as the ranks hold it; full where it was joined or summed before comparing; "
            "null: not observed.")},
       {"matches", described(any_key(type("boolean")),
                             "Objective: whether the observed gradient is its truth.")},
       {"max_abs_error", ref("number")},
       {"max_rel_error", ref("number")},
       {"bound", described(ref("number"),
                           "The derived bound at the worst element; 0: compared bit by bit.")},
       {"first_difference", or_null(place)}});
}

Json expectation() {
  return object({{"verdict", ref("verdict")},
                 {"finding", ref("rule")},
                 {"collective", collectives()},
                 {"gradients", any_key(list_of(ref("tensor")))},
                 {"message", type("string")}},
                {"finding", "collective", "gradients", "message"});
}

Json finding() {
  return object(
      {{"rule", ref("rule")},
       {"collective", or_null(collectives())},
       {"step", or_null(type("string"))},
       {"ranks", list_of(at_least(0))},
       {"factor", described(or_null(ref("number")), "observed/truth where that is one number.")},
       {"text", type("string")}});
}

Json error() {
  return object({{"kind", one_of({"exception", "crash", "hang", "desync", "backend"})},
                 {"rank", or_null(at_least(0))},
                 {"step", or_null(type("string"))},
                 {"message", type("string")}});
}

Json case_record() {
  const Json losses = or_null(list_of(ref("number")));
  return object(
      {{"id", described(type("string"), "Selects this case on the command line.")},
       {"file", type("string")},
       {"name", type("string")},
       {"subject", type("string")},
       {"backend", type("string")},
       {"world_size", at_least(1)},
       {"dtype", dtypes()},
       {"objective", type("string")},
       {"device", described(type("string"), "cuda; absent: the CPU")},
       {"verdict", ref("verdict")},
       {"expected", ref("expectation")},
       {"as_expected", described(or_null(type("boolean")),
                                 "null: skipped or disputed, and the file does not expect it.")},
       {"why", type("string")},
       {"error", error()},
       {"losses", object({{"simulated", losses}, {"distributed", losses}})},
       {"gradients", any_key(ref("gradient"))},
       {"findings", described(list_of(ref("finding")), "The first is the most specific.")},
       {"warnings", list_of(object({{"rank", at_least(0)}, {"text", type("string")}}))},
       {"composed", described(list_of(type("string")),
                              "Collectives that the backend lacks, and what they were made of.")},
       {"notes", described(list_of(type("string")), "What was not checked, and why.")},
       {"output", described(list_of(type("string")),
                            "What each rank wrote to standard output and error, if any did.")},
       {"elapsed_s", ref("number")}},
      {"device", "error", "output"});
}

}  // namespace

Json report_schema() {
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "distgrad's JSON report, format 1"}};
  const Json summary = object({{"cases", at_least(0)},
                               {"as_expected", at_least(0)},
                               {"not_as_expected", at_least(0)},
                               {"broken", at_least(0)},
                               {"skipped", at_least(0)},
                               {"disputed", at_least(0)},
                               {"elapsed_s", ref("number")}});
  const Json invalid = object({{"file", type("string")},
                               {"line", at_least(0)},
                               {"column", at_least(0)},
                               {"pointer", type("string")},
                               {"message", type("string")}});
  const Json tool = object({{"name", {{"const", "distgrad"}}},
                            {"version", type("string")},
                            {"torch", or_null(type("string"))},
                            {"host", type("string")}});
  root.update(object({{"format", {{"const", 1}}},
                      {"tool", tool},
                      {"command", type("string")},
                      {"summary", summary},
                      {"invalid", list_of(invalid)},
                      {"cases", list_of(ref("case"))}}));
  root["$defs"] = {{"number", number()},
                   {"tensor", tensor()},
                   {"tensor_summary", tensor_summary()},
                   {"verdict", one_of({"match", "mismatch", "error", "skipped", "disputed"})},
                   {"rule", rules()},
                   {"gradient", gradient()},
                   {"expectation", expectation()},
                   {"finding", finding()},
                   {"case", case_record()}};
  return root;
}

}  // namespace distgrad
