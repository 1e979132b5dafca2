#include "report/schema.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "model/collective_kind.h"
#include "model/dtype.h"
#include "model/error_kind.h"
#include "model/findings.h"
#include "model/verdict.h"

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;

Json type(const char* name) { return {{"type", name}}; }
Json ref(const std::string& name) { return {{"$ref", "#/$defs/" + name}}; }
Json list_of(Json items) { return {{"type", "array"}, {"items", std::move(items)}}; }
Json one_of(std::vector<std::string> names) { return {{"enum", std::move(names)}}; }

// Leaves out kSubject: a subject that cannot be loaded ends its cases without a report of them.
std::vector<std::string> error_kinds() {
  std::vector<std::string> names;
  for (const std::string_view name : kErrorKinds)
    if (name != name_of(ErrorKind::kSubject)) names.emplace_back(name);
  return names;
}
Json or_null(Json schema) { return {{"anyOf", Json::array({std::move(schema), type("null")})}}; }
Json described(Json schema, const char* text) {
  schema["description"] = text;
  return schema;
}
Json at_least(int minimum) { return {{"type", "integer"}, {"minimum", minimum}}; }

// Readers must tolerate other fields, as a later version may add some. Fields in `optional` may be
// absent.
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
      {{"index", described(list_of(at_least(0)), "Where it is.")},
       {"value", described(ref("number"), "What it is.")},
       {"abs_error", described(ref("number"), "Against the other side: truth or observed.")}},
      {"abs_error"});
  return object(
      {{"shape", described(list_of(at_least(0)), "Of the whole tensor.")},
       {"norms", described(object({{"l1", described(ref("number"), "Sum of absolute values.")},
                                   {"l2", described(ref("number"), "Euclidean norm.")},
                                   {"max", described(ref("number"), "Largest absolute value.")}}),
                           "Of the whole tensor.")},
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
  const Json place = object({{"rank", described(at_least(0), "The first rank that differs.")},
                             {"index", described(list_of(at_least(0)), "Its first element.")}});
  return object(
      {{"layout",
        described(type("string"), "local, replicate, invariant, shard:0, or by mesh axis.")},
       {"truth", described(object({{"by_rank", described(list_of(ref("tensor")), "On each rank.")},
                                   {"full", described(ref("tensor"), "The whole tensor.")}},
                                  {"by_rank", "full"}),
                           "by_rank for local inputs, full for the others.")},
       {"observed",
        described(
            or_null(
                object({{"by_rank", described(list_of(ref("tensor")), "As each rank holds it.")},
                        {"full", described(ref("tensor"), "Joined or summed over the ranks.")}},
                       {"full"})),
            "by_rank as the ranks hold it; full where it was joined or summed before comparing; "
            "null: not observed.")},
       {"matches", described(any_key(type("boolean")),
                             "Objective: whether the observed gradient is its truth.")},
       {"max_abs_error", described(ref("number"), "At the worst element.")},
       {"max_rel_error", described(ref("number"), "At the worst element.")},
       {"bound", described(ref("number"),
                           "The derived bound at the worst element; 0: compared bit by bit.")},
       {"first_difference", described(or_null(place), "null: none.")}});
}

Json expectation() {
  return object({{"verdict", described(ref("verdict"), "What the case was to come to.")},
                 {"finding", described(ref("rule"), "Was to be among the findings.")},
                 {"collective", described(collectives(), "Was to be blamed.")},
                 {"gradients", described(any_key(list_of(ref("tensor"))),
                                         "Input: the gradient that was to be observed, by rank.")},
                 {"message", described(type("string"), "A part of the error's or skip's text.")}},
                {"finding", "collective", "gradients", "message"});
}

Json measured() {
  const Json matrix = list_of(list_of(ref("number")));
  return object(
      {{"formula", described(type("string"), "What the backward gives the operands: x̄_r = 4 ȳ_r.")},
       {"right", described(type("string"), "What is right.")},
       {"linear", described(type("boolean"), "Whether the backward is linear in the cotangents.")},
       {"shown_by", described(type("string"), "The cotangents that this rests on.")},
       {"ranks", described(list_of(at_least(0)), "Of the world, in the order of what follows.")},
       {"coefficients", described(or_null(matrix),
                                  "[to][from] by rank, relative to what is right; null where one "
                                  "number a pair does not do.")},
       {"matrices",
        described(
            or_null(object(
                {{"rows", described(list_of(at_least(0)), "Elements of each rank's operand.")},
                 {"columns", described(list_of(at_least(0)), "Elements of each rank's output.")},
                 {"measured", described(matrix, "By element of the operands and of the outputs.")},
                 {"right", described(matrix, "The same, as it is right.")}})),
            "The backward by element; null where it was not measured whole.")}});
}

Json finding() {
  return object(
      {{"rule", described(ref("rule"), "Its name; `distgrad list findings` has them.")},
       {"collective", described(or_null(collectives()), "The one that is blamed.")},
       {"step", described(or_null(type("string")), "The step that is blamed.")},
       {"ranks", described(list_of(at_least(0)), "Where the gradients are wrong.")},
       {"factor", described(or_null(ref("number")), "observed/truth where that is one number.")},
       {"text", described(type("string"), "What it means here, and what to change.")},
       {"measured",
        described(ref("measured"), "Of a collective call that could be run again: its backward.")}},
      {"measured"});
}

Json error() {
  return object({{"kind", described(one_of(error_kinds()), "What became of the ranks.")},
                 {"rank", described(or_null(at_least(0)), "The one it happened on, if one.")},
                 {"step", described(or_null(type("string")), "The step it happened in, if known.")},
                 {"message", described(type("string"), "What the rank said.")}});
}

Json case_record() {
  const Json losses = or_null(list_of(ref("number")));
  return object(
      {{"id", described(type("string"), "Selects this case on the command line.")},
       {"file", described(type("string"), "The scenario's.")},
       {"name", described(type("string"), "The scenario's.")},
       {"subject", described(type("string"), "The implementation under test.")},
       {"backend", described(type("string"), "What carried the collectives.")},
       {"world_size", described(at_least(1), "The number of ranks.")},
       {"dtype", described(dtypes(), "What the ranks computed in.")},
       {"objective", described(type("string"), "sum, mean, replicated, rank:1, dp=mean+tp=sum")},
       {"device", described(type("string"), "cuda; absent: the CPU")},
       {"verdict", described(ref("verdict"), "What the case came to.")},
       {"expected", described(ref("expectation"), "The expectation of the file that applies.")},
       {"as_expected", described(or_null(type("boolean")),
                                 "null: skipped or disputed, and the file does not expect it.")},
       {"why", described(type("string"), "Why it is skipped, disputed or not as expected.")},
       {"error", described(error(), "Only with the verdict error.")},
       {"losses", described(object({{"simulated", described(losses, "null: was not simulated.")},
                                    {"distributed", described(losses, "null: did not run.")}}),
                            "By rank.")},
       {"gradients", described(any_key(ref("gradient")), "By input.")},
       {"findings", described(list_of(ref("finding")), "The first is the most specific.")},
       {"warnings", described(list_of(object({{"rank", described(at_least(0), "Where.")},
                                              {"text", described(type("string"), "What.")}})),
                              "What torch warned of.")},
       {"composed", described(list_of(type("string")),
                              "Collectives that the backend lacks, and what they were made of.")},
       {"notes", described(list_of(type("string")), "What was not checked, and why.")},
       {"output", described(list_of(type("string")),
                            "What each rank wrote to standard output and error, if any did.")},
       {"elapsed_s", described(ref("number"), "Seconds that the case took.")}},
      {"device", "error", "output"});
}

}  // namespace

Json report_schema() {
  Json root = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
               {"title", "distgrad's JSON report, format 1"}};
  const Json summary =
      object({{"cases", described(at_least(0), "All; each counts once below.")},
              {"as_expected", described(at_least(0), "Came out as the file expects.")},
              {"not_as_expected", described(at_least(0), "Did not: exit code 1.")},
              {"broken", described(at_least(0), "Could not be carried through: exit code 3.")},
              {"skipped", described(at_least(0), "Skipped, and the file does not expect it.")},
              {"disputed", described(at_least(0), "Disputed, and the file does not expect it.")},
              {"elapsed_s", described(ref("number"), "Seconds that the whole run took.")}});
  const Json invalid =
      object({{"file", described(type("string"), "The scenario file.")},
              {"line", described(at_least(0), "From 1; 0: not known.")},
              {"column", described(at_least(0), "In bytes, from 1; 0: not known.")},
              {"pointer", described(type("string"), "The JSON pointer.")},
              {"message", described(type("string"), "What is wrong there.")}});
  const Json tool = object(
      {{"name", described({{"const", "distgrad"}}, "What wrote this.")},
       {"version", described(type("string"), "Of distgrad.")},
       {"torch", described(or_null(type("string")), "The one it was built with.")},
       {"host", described(type("string"), "The machine's name.")},
       {"hosts",
        described(list_of(type("string")), "Where each process ran, if on several hosts.")},
       {"mesh_order",
        described(list_of(type("string")), "Meshes of these axes lay over the processes so.")}},
      {"hosts", "mesh_order"});
  root.update(
      object({{"format", described({{"const", 1}}, "The format's version.")},
              {"tool", described(tool, "What wrote this, and where.")},
              {"command", described(type("string"), "As a shell takes it again.")},
              {"summary", described(summary, "How many cases came to what.")},
              {"invalid", described(list_of(invalid), "Problems in scenario files and subjects.")},
              {"cases", described(list_of(ref("case")), "In the order of the run.")}}));
  root["$defs"] = {{"number", number()},
                   {"tensor", tensor()},
                   {"tensor_summary", tensor_summary()},
                   {"verdict", one_of({kVerdicts.begin(), kVerdicts.end()})},
                   {"rule", rules()},
                   {"gradient", gradient()},
                   {"expectation", expectation()},
                   {"finding", finding()},
                   {"measured", measured()},
                   {"case", case_record()}};
  return root;
}

}  // namespace distgrad
