#include "protocol/program_codec.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "model/layout_name.h"

namespace distgrad {
namespace {

// The writers take structs apart by structured bindings: a member added to the model and forgotten
// here does not compile.

// Names of enumerators in the order of their values.
constexpr std::array<std::string_view, 3> kDistributions = {"integers", "normal", "uniform"};
constexpr std::array<std::string_view, 2> kSyncs = {"sum", "mean"};

template <class Enum, std::size_t N>
Enum read_enum(const Json& json, const std::array<std::string_view, N>& names) {
  const std::string& text = read_text(json);
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) throw BadMessage("unknown name \"" + text + '"');
  return static_cast<Enum>(found - names.begin());
}

template <class T>
T known(const std::optional<T>& found, const Json& name) {
  if (!found) throw BadMessage("unknown name " + header_text(name));
  return *found;
}

Json write_expression(const Expression& e) {
  const auto& [text, pointer] = e;
  Json json;
  json["text"] = text;
  json["pointer"] = pointer;
  return json;
}

Expression read_expression(const Json& json) {
  return {read_text(field(json, "text")), read_text(field(json, "pointer"))};
}

template <class Integer>
std::vector<std::vector<Integer>> read_table(const Json& json, std::int64_t low,
                                             std::int64_t high) {
  std::vector<std::vector<Integer>> table;
  for (const Json& row : read_list(json)) {
    auto& numbers = table.emplace_back();
    for (const Json& n : read_list(row))
      numbers.push_back(static_cast<Integer>(read_integer(n, low, high)));
  }
  return table;
}

Json write_group(const Group& g) {
  const auto& [name, partition, is_mesh_axis] = g;
  Json json;
  json["name"] = name;
  json["partition"] = partition;
  json["is_mesh_axis"] = is_mesh_axis;
  return json;
}

Group read_group(const Json& json, int world_size) {
  return {read_text(field(json, "name")),
          read_table<int>(field(json, "partition"), 0, world_size - 1),
          read_bool(field(json, "is_mesh_axis"))};
}

Json write_random(const RandomSpec& r) {
  const auto& [shape, kind, low, high, seed] = r;
  Json json;
  Json& sizes = json["shape"] = Json::array();
  for (const auto& entry : shape) {
    if (const auto* size = std::get_if<std::int64_t>(&entry))
      sizes.push_back(*size);
    else
      sizes.push_back(write_expression(std::get<Expression>(entry)));
  }
  json["kind"] = kDistributions[static_cast<std::size_t>(kind)];
  json["low"] = number(low);
  json["high"] = number(high);
  json["seed"] = seed;
  return json;
}

RandomSpec read_random(const Json& json) {
  RandomSpec r;
  for (const Json& entry : read_list(field(json, "shape"))) {
    if (entry.is_object())
      r.shape.emplace_back(read_expression(entry));
    else
      r.shape.emplace_back(read_integer(entry, 0, std::numeric_limits<std::int64_t>::max()));
  }
  r.kind = read_enum<RandomSpec::Kind>(field(json, "kind"), kDistributions);
  r.low = read_number(field(json, "low"));
  r.high = read_number(field(json, "high"));
  r.seed = read_id(field(json, "seed"));
  return r;
}

// An input's value or the file's truth: what a variant of these holds, under a key that says which.
template <class Variant>
void write_value(const Variant& value, Json& json, PayloadWriter& out) {
  if (const auto* array = std::get_if<Array>(&value))
    json["value"] = out.array(*array);
  else if (const auto* by_rank = std::get_if<std::vector<Array>>(&value))
    json["by_rank"] = out.arrays(*by_rank);
  else if (const auto* expr = std::get_if<Expression>(&value))
    json["expr"] = write_expression(*expr);
  else if constexpr (std::variant_size_v<Variant> > 3)
    json["random"] = write_random(std::get<RandomSpec>(value));
}

template <class Variant>
Variant read_value(const Json& json, const PayloadReader& in) {
  if (const Json* value = optional_field(json, "value")) return in.array(*value);
  if (const Json* by_rank = optional_field(json, "by_rank")) return in.arrays(*by_rank);
  if constexpr (std::variant_size_v < Variant >> 3)
    if (const Json* random = optional_field(json, "random")) return read_random(*random);
  return read_expression(field(json, "expr"));
}

Json write_layout(const AxisLayout& l) {
  const auto& [axis, layout] = l;
  const auto& [kind, dim] = layout;
  Json json;
  json["axis"] = axis;
  json["kind"] = layout_name(kind);
  if (kind == Layout::Kind::kShard) json["dim"] = dim;
  return json;
}

AxisLayout read_layout(const Json& json) {
  AxisLayout result{read_text(field(json, "axis")), {}};
  result.layout.kind = read_enum<Layout::Kind>(field(json, "kind"), kLayoutNames);
  if (const Json* dim = optional_field(json, "dim")) result.layout.dim = read_int(*dim);
  return result;
}

Json write_input(const Input& input, PayloadWriter& out) {
  const auto& [name, pointer, value, requires_grad, layout, sync] = input;
  Json json;
  json["name"] = name;
  json["pointer"] = pointer;
  write_value(value, json, out);
  if (!requires_grad) json["requires_grad"] = false;
  Json& layouts = json["layout"] = Json::array();
  for (const AxisLayout& l : layout) layouts.push_back(write_layout(l));
  for (const auto& [axis, op] : sync) {
    Json entry;
    entry["axis"] = axis;
    entry["op"] = kSyncs[static_cast<std::size_t>(op)];
    json["sync"].push_back(std::move(entry));
  }
  return json;
}

Input read_input(const Json& json, const PayloadReader& in) {
  Input input;
  input.name = read_text(field(json, "name"));
  input.pointer = read_text(field(json, "pointer"));
  input.value = read_value<decltype(input.value)>(json, in);
  if (const Json* requires_grad = optional_field(json, "requires_grad"))
    input.requires_grad = read_bool(*requires_grad);
  for (const Json& entry : read_list(field(json, "layout")))
    input.layout.push_back(read_layout(entry));
  if (const Json* sync = optional_field(json, "sync"))
    for (const Json& entry : read_list(*sync))
      input.sync.emplace_back(read_text(field(entry, "axis")),
                              read_enum<Input::Sync>(field(entry, "op"), kSyncs));
  return input;
}

Json write_call(const CollectiveCall& call) {
  const auto& [kind, operand, group, op, factor, root, dim, splits, pairs] = call;
  Json json;
  json["kind"] = traits(kind).name;
  json["operand"] = write_expression(operand);
  json["group"] = group;
  json["op"] = name_of(op);
  json["factor"] = number(factor);
  json["root"] = root;
  if (dim) json["dim"] = *dim;
  if (!splits.empty()) json["splits"] = splits;
  if (!pairs.empty()) json["pairs"] = pairs;
  return json;
}

CollectiveCall read_call(const Json& json, int world_size) {
  CollectiveCall call;
  const Json& kind = field(json, "kind");
  call.kind = known(collective_named(read_text(kind)), kind);
  call.operand = read_expression(field(json, "operand"));
  call.group = read_text(field(json, "group"));
  const Json& op = field(json, "op");
  call.op = known(reduce_op_named(read_text(op)), op);
  call.factor = read_number(field(json, "factor"));
  call.root = static_cast<int>(read_integer(field(json, "root"), 0, world_size - 1));
  if (const Json* dim = optional_field(json, "dim")) call.dim = read_int(*dim);
  if (const Json* splits = optional_field(json, "splits"))
    call.splits = read_table<std::int64_t>(*splits, 0, std::numeric_limits<std::int64_t>::max());
  if (const Json* pairs = optional_field(json, "pairs"))
    for (const auto& pair : read_table<int>(*pairs, 0, world_size - 1)) {
      if (pair.size() != 2) throw BadMessage("\"pairs\" has an entry that is no pair");
      call.pairs.emplace_back(pair[0], pair[1]);
    }
  return call;
}

Json write_code(const CodeCall& call) {
  const auto& [code, arguments, simulate] = call;
  Json json;
  json["code"] = code;
  Json& list = json["args"] = Json::array();
  for (const Expression& argument : arguments) list.push_back(write_expression(argument));
  json["simulate"] = simulate;
  return json;
}

CodeCall read_code(const Json& json) {
  CodeCall call;
  call.code = read_text(field(json, "code"));
  for (const Json& argument : read_list(field(json, "args")))
    call.arguments.push_back(read_expression(argument));
  call.simulate = read_text(field(json, "simulate"));
  return call;
}

Json write_steps(const std::vector<Step>& steps) {
  Json list = Json::array();
  for (const auto& [name, pointer, what] : steps) {
    Json json;
    json["name"] = name;
    json["pointer"] = pointer;
    if (const auto* call = std::get_if<CollectiveCall>(&what))
      json["collective"] = write_call(*call);
    else if (const auto* code = std::get_if<CodeCall>(&what))
      json["call"] = write_code(*code);
    else
      json["expr"] = write_expression(std::get<Expression>(what));
    list.push_back(std::move(json));
  }
  return list;
}

std::vector<Step> read_steps(const Json& list, int world_size) {
  std::vector<Step> steps;
  for (const Json& json : read_list(list)) {
    Step step{read_text(field(json, "name")), read_text(field(json, "pointer")), {}};
    if (const Json* call = optional_field(json, "collective"))
      step.what = read_call(*call, world_size);
    else if (const Json* code = optional_field(json, "call"))
      step.what = read_code(*code);
    else
      step.what = read_expression(field(json, "expr"));
    steps.push_back(std::move(step));
  }
  return steps;
}

Json write_truth(const Program::Truth& truth, PayloadWriter& out) {
  const auto& [input, pointer, value] = truth;
  Json json;
  json["input"] = input;
  json["pointer"] = pointer;
  write_value(value, json, out);
  return json;
}

Program::Truth read_truth(const Json& json, const PayloadReader& in) {
  Program::Truth truth{read_text(field(json, "input")), read_text(field(json, "pointer")), {}};
  truth.value = read_value<decltype(truth.value)>(json, in);
  return truth;
}

}  // namespace

Json write_program(const Program& program, PayloadWriter& out) {
  const auto& [world_size, dtype, groups, inputs, steps, loss, single_device, truth] = program;
  Json json;
  json["world_size"] = world_size;
  json["dtype"] = traits(dtype).name;
  Json& group_list = json["groups"] = Json::array();
  for (const Group& g : groups) group_list.push_back(write_group(g));
  Json& input_list = json["inputs"] = Json::array();
  for (const Input& i : inputs) input_list.push_back(write_input(i, out));
  json["steps"] = write_steps(steps);
  json["loss"] = write_expression(loss);
  if (single_device) {
    const auto& [single_steps, single_loss] = *single_device;
    Json& single = json["single_device"];
    single["steps"] = write_steps(single_steps);
    single["loss"] = write_expression(single_loss);
  }
  for (const Program::Truth& t : truth) json["truth"].push_back(write_truth(t, out));
  return json;
}

Program read_program(const Json& json, const PayloadReader& in) {
  Program program;
  program.world_size =
      static_cast<int>(read_integer(field(json, "world_size"), 1, std::numeric_limits<int>::max()));
  const Json& dtype = field(json, "dtype");
  program.dtype = known(dtype_named(read_text(dtype)), dtype);
  for (const Json& g : read_list(field(json, "groups")))
    program.groups.push_back(read_group(g, program.world_size));
  for (const Json& i : read_list(field(json, "inputs")))
    program.inputs.push_back(read_input(i, in));
  program.steps = read_steps(field(json, "steps"), program.world_size);
  program.loss = read_expression(field(json, "loss"));
  if (const Json* single = optional_field(json, "single_device"))
    program.single_device = SingleDevice{read_steps(field(*single, "steps"), program.world_size),
                                         read_expression(field(*single, "loss"))};
  if (const Json* truth = optional_field(json, "truth"))
    for (const Json& t : read_list(*truth)) program.truth.push_back(read_truth(t, in));
  return program;
}

}  // namespace distgrad
