// Writes inputs(): the values of the leaves before each rank takes its share.
#include <fmt/format.h>

#include <algorithm>

#include "model/random_values.h"
#include "repro/program_facts.h"
#include "repro/python_text.h"
#include "repro/script_parts.h"

namespace distgrad {
namespace {

constexpr std::int64_t kMostLiterals =
    64;  // most random numbers that are written out, over all ranks

// Returns the shape where all sizes are numbers.
std::optional<Shape> known_shape(const RandomSpec& spec) {
  Shape shape;
  for (const auto& entry : spec.shape) {
    if (!std::holds_alternative<std::int64_t>(entry)) return std::nullopt;
    shape.push_back(std::get<std::int64_t>(entry));
  }
  return shape;
}

Array drawn(const RandomSpec& spec, const Shape& shape, const std::string& name, int rank) {
  const RandomValues values(spec, name, rank);
  std::vector<double> numbers;
  for (std::int64_t i = 0; i < element_count(shape); ++i)
    numbers.push_back(values[static_cast<std::uint64_t>(i)]);
  return Array(shape, std::move(numbers));
}

bool is_written_out(const RandomSpec& spec, int ranks) {
  const auto shape = known_shape(spec);
  return shape && element_count(*shape) * ranks <= kMostLiterals;
}

std::string generator_call(const RandomSpec& spec, const std::string& name, bool local) {
  static constexpr const char* kKinds[] = {"integers", "normal", "uniform"};
  std::vector<std::string> sizes;
  for (const auto& entry : spec.shape) {
    const auto* number = std::get_if<std::int64_t>(&entry);
    sizes.push_back(number ? std::to_string(*number)
                           : "int(" + std::get<Expression>(entry).text + ")");
  }
  std::string shape;
  for (const std::string& size : sizes) shape += (shape.empty() ? "" : ", ") + size;
  const std::string key = fmt::format("{}/{}/", spec.seed, name);
  return fmt::format("drawn([{}], \"{}\", {}, {}, {})", shape, kKinds[static_cast<int>(spec.kind)],
                     number_literal(spec.low), number_literal(spec.high),
                     local ? fmt::format("f\"{}{{rank}}\"", key) : string_literal(key));
}

// Breaks a tensor that is too long for one line into one line for each row.
std::string in_rows(std::string line) {
  const std::size_t begin = line.find("torch.tensor([[");
  if (line.size() <= 100 || line.find('\n') + 1 != line.size() || begin == std::string::npos)
    return line;
  const std::size_t first = begin + std::string_view("torch.tensor([").size(),
                    last = line.rfind("])");
  std::string out = line.substr(0, first) + "\n        ";
  int depth = 0;
  for (std::size_t i = first; i < last; ++i) {
    depth += line[i] == '[' ? 1 : line[i] == ']' ? -1 : 0;
    if (depth == 0 && line[i] == ',') {
      out += ",\n        ";
      ++i;  // skips the space behind the comma
    } else {
      out += line[i];
    }
  }
  return out + ",\n    " + line.substr(last);
}

std::string listed(const std::vector<std::string>& items) {
  std::string line, lines;
  for (const std::string& item : items) {
    line += (line.empty() ? "" : ", ") + item;
    lines += "        " + item + ",\n";
  }
  return line.size() < 80 ? "[" + line + "]" : "[\n" + lines + "    ]";
}

// Converts, as an expression may give a number.
std::string as_tensor(const std::string& text) {
  return text.starts_with("torch.") ? text : "torch.as_tensor(" + text + ")";
}

std::string value_of(const Input& input, const std::string& name, const Program& program) {
  const bool local = input.is_local();
  if (const auto* array = std::get_if<Array>(&input.value))
    return local ? fmt::format("[{}] * world_size", tensor_literal(*array))
                 : tensor_literal(*array);
  std::vector<std::string> items;
  if (const auto* by_rank = std::get_if<std::vector<Array>>(&input.value)) {
    for (const Array& array : *by_rank) items.push_back(tensor_literal(array));
    return listed(items);
  }
  if (const auto* text = std::get_if<Expression>(&input.value)) {
    if (!local) return as_tensor(text->text);
    return "[" + as_tensor(text->text) + " " +
           over_ranks(text->text, group_names_used(program, {text->text})) + "]";
  }
  const RandomSpec& spec = std::get<RandomSpec>(input.value);
  if (!is_written_out(spec, local ? program.world_size : 1)) {
    const std::string call = generator_call(spec, name, local);
    std::string sizes = "rank";
    for (const auto& entry : spec.shape)
      if (const auto* size = std::get_if<Expression>(&entry)) sizes += " + " + size->text;
    return local ? "[" + call + " " + over_ranks(sizes, group_names_used(program, {sizes})) + "]"
                 : call;
  }
  if (!local) return tensor_literal(drawn(spec, *known_shape(spec), name, -1));
  for (int r = 0; r < program.world_size; ++r)
    items.push_back(tensor_literal(drawn(spec, *known_shape(spec), name, r)));
  return listed(items);
}

// Writes, for the comprehensions, lists over the ranks such as "tp_rank = [0, 1]".
std::string group_lists(const Program& program, const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    std::vector<int> values;
    for (int r = 0; r < program.world_size; ++r)
      for (const Group& group : program.groups) {
        const auto [list, place] = group.place_of(r);
        if (name == group.name + "_rank") values.push_back(place);
        if (name == group.name + "_size")
          values.push_back(static_cast<int>(group.partition[list].size()));
      }
    std::string lists = list_literal({values});
    text += fmt::format("    {} = {}\n", name, lists.substr(1, lists.size() - 2));
  }
  return text;
}

std::vector<std::string> expressions_of_inputs(const Program& program) {
  std::vector<std::string> texts;
  for (const Input& input : program.inputs) {
    if (const auto* text = std::get_if<Expression>(&input.value)) texts.push_back(text->text);
    if (const auto* spec = std::get_if<RandomSpec>(&input.value))
      for (const auto& entry : spec->shape)
        if (const auto* size = std::get_if<Expression>(&entry)) texts.push_back(size->text);
  }
  return texts;
}

}  // namespace

std::string inputs_part(const Program& program) {
  const bool shared = std::any_of(program.inputs.begin(), program.inputs.end(),
                                  [](const Input& i) { return !i.is_local(); });
  std::string text =
      fmt::format("def inputs():\n    \"\"\"The leaves: a list over the ranks{}.\"\"\"\n",
                  shared ? ", or one tensor that they have copies or pieces of" : "");
  text += group_lists(program, group_names_used(program, expressions_of_inputs(program)));
  std::string names;
  for (const Input& input : program.inputs) {
    const std::string drawn_as = input.pointer.substr(input.pointer.rfind('/') + 1);
    text +=
        in_rows(fmt::format("    {} = {}\n", input.name,
                            value_of(input, drawn_as.empty() ? input.name : drawn_as, program)));
    names += (names.empty() ? "" : ", ") + input.name;
  }
  return text + fmt::format("    return {}\n", names);
}

}  // namespace distgrad
