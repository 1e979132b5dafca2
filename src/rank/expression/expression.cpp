#include "rank/expression/expression.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/lift_fresh.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <functional>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/recently_used.h"
#include "rank/expression/emitter.h"
#include "rank/expression/evaluation_scope.h"
#include "rank/expression/graph_builder.h"
#include "rank/expression/instructions.h"
#include "rank/expression/lowering.h"
#include "rank/expression/numbers.h"
#include "rank/expression/scalar_type.h"
#include "scenario/syntax.h"

namespace distgrad {
namespace {

using c10::IValue;
using c10::TypePtr;

TypePtr type_of(NameType type) {
  switch (type) {
    case NameType::kTensor:
      return c10::TensorType::get();
    case NameType::kInt:
      return c10::IntType::get();
    case NameType::kTensorList:
      return c10::ListType::ofTensors();
  }
  return c10::TensorType::get();
}

// Returns the text on one line (only what is around `place` if it is long), and a '^' under the
// byte at `place`, which may be the end.
std::string caret_under(const std::string& text, std::size_t place) {
  constexpr std::size_t kAround = 60;
  const auto continues_character = [&](std::size_t i) {
    return i < text.size() && (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80;
  };
  std::size_t begin = 0, end = text.size();
  if (text.size() > 2 * kAround) {
    begin = place > kAround ? place - kAround : 0;
    end = std::min(end, place + kAround);
    while (continues_character(begin)) ++begin;
    while (continues_character(end)) ++end;
  }
  std::string line = begin > 0 ? "..." : "", indent(line.size(), ' ');
  for (std::size_t i = begin; i < end; ++i) {
    line += static_cast<unsigned char>(text[i]) < 0x20 ? ' ' : text[i];
    if (i < place && !continues_character(i)) indent += ' ';
  }
  return line + (end < text.size() ? "...\n" : "\n") + indent + "^";
}

InvalidExpression invalid(const std::string& text, const ExpressionError& error) {
  return InvalidExpression(error.what(), text.empty() ? "" : caret_under(text, error.place()));
}

// Holds what runs. It knows no names, so that expressions that differ only in names share it, and
// in numbers, which may be replaced.
struct Code {
  at::ScalarType dtype;
  InstructionList instructions;

  NumberResult numbers;

  IValue value(std::vector<IValue> values, const Replaced& replaced = {}) const {
    const EvaluationScope scope(dtype);
    IValue result = run_instructions(instructions, std::move(values), replaced);
    if (result.isTensor() || numbers == NumberResult::kKeep) return result;
    // lift_fresh tells the dispatcher of a constant, as torch.tensor does.
    return at::lift_fresh(at::scalar_tensor(result.toScalar(), at::TensorOptions().dtype(dtype)));
  }
};

using MakeCode = std::function<std::shared_ptr<const Code>()>;

// Pairs shared code with the text's own numbers.
struct SharedCode {
  std::shared_ptr<const Code> code;
  Replaced numbers;
};

class Compiled : public CompiledExpression {
 public:
  // The code takes the values in the order of `taken`, which has the same names. `own` compiles
  // this text itself, since shared code has another text's places.
  Compiled(std::string text, std::vector<std::string> names, const std::vector<std::string>& taken,
           SharedCode shared, MakeCode own)
      : text_(std::move(text)),
        names_(std::move(names)),
        shared_(std::move(shared)),
        own_(std::move(own)) {
    for (const std::string& name : taken)
      places_.push_back(std::find(names_.begin(), names_.end(), name) - names_.begin());
  }

  const std::vector<std::string>& names() const override { return names_; }

  IValue value(std::vector<IValue> values) const override {
    TORCH_CHECK(values.size() == names_.size(), "expression ", text_, " takes ", names_.size(),
                " values, not ", values.size());
    std::vector<IValue> taken;
    taken.reserve(places_.size());
    for (const std::ptrdiff_t place : places_)
      taken.push_back(values[static_cast<std::size_t>(place)]);
    try {
      return shared_.code->value(taken, shared_.numbers);
    } catch (const ExpressionError&) {
    }
    try {
      return own_()->value(std::move(taken));
    } catch (const ExpressionError& error) {
      throw invalid(text_, error);
    }
  }

 private:
  std::string text_;
  std::vector<std::string> names_;
  std::vector<std::ptrdiff_t> places_;  // indices into names_ of what the code takes
  SharedCode shared_;
  MakeCode own_;
};

[[noreturn]] void refuse_result(const TypePtr& type, std::size_t place) {
  std::string hint;
  if (is_number(type)) hint = "; write torch.tensor(...)";
  if (type->kind() == c10::TypeKind::TupleType) hint = "; take one element, such as [0]";
  if (type->kind() == c10::TypeKind::ListType)
    hint = *type == *c10::ListType::ofTensors() ? "; write torch.stack(...) or torch.cat(...)"
                                                : "; write torch.tensor(...)";
  throw ExpressionError("this is " + describe_type(type) + ", not a tensor" + hint, place);
}

std::shared_ptr<const Code> compile(const std::string& text, const Syntax& tree, const Scope& scope,
                                    const std::vector<std::string>& used, DType dtype,
                                    NumberResult numbers) {
  std::vector<std::pair<std::string, TypePtr>> inputs;
  for (const std::string& name : used) inputs.emplace_back(name, type_of(scope.at(name)));
  std::vector<std::string> all_names;
  for (const auto& [name, type] : scope) all_names.push_back(name);
  const EmittedGraph graph = emit_graph(tree, text, inputs, all_names);
  const TypePtr& type = graph.result->type();
  const bool accepted = type->kind() == c10::TypeKind::TensorType ||
                        numbers == NumberResult::kKeep ||
                        (numbers == NumberResult::kAccept && is_number(type));
  if (!accepted) refuse_result(type, tree.place);
  return std::make_shared<Code>(Code{scalar_type(dtype), lower(graph), numbers});
}

std::vector<std::string> used_of(const std::vector<std::string>& free, const Scope& scope) {
  std::vector<std::string> used;
  for (const std::string& name : free)
    if (scope.contains(name)) used.push_back(name);
  return used;
}

// Makes a key of what the compiled expression depends on beside the text.
std::string types_key(const std::vector<std::string>& used, const Scope& scope, DType dtype,
                      NumberResult numbers) {
  std::string key{static_cast<char>('0' + static_cast<int>(dtype)),
                  static_cast<char>('0' + static_cast<int>(numbers))};
  for (const std::string& name : used)
    key += name + static_cast<char>('0' + static_cast<int>(scope.at(name)));
  return key;
}

// Makes a key of the tree without places. In it used names are numbers, in the order in which they
// come, and numbers differ only as int and float.
class Shape {
 public:
  explicit Shape(const std::vector<std::string>& used) : used_(used) {}

  // Returns false if comprehensions bind names, which this key does not tell apart.
  bool add(const Syntax& node, bool with_number = false) {
    if (!node.targets.empty()) return false;
    if (node.kind == Syntax::Kind::kInt || node.kind == Syntax::Kind::kFloat) {
      add_number(node, with_number);
      return true;
    }
    key_ += static_cast<char>('A' + static_cast<int>(node.kind));
    add_text(node);
    key_ += std::to_string(node.children.size() + 256 * node.keywords.size()) + ';';
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      const Syntax* child = node.children[i].get();
      if (!child)
        key_ += '-';  // a slice's bound that is not given
      else if (!add(*child, i > 0 && decides_types(node)))
        return false;
    }
    for (const auto& [name, value] : node.keywords) {
      key_ += name + '=';
      if (!add(*value)) return false;
    }
    return true;
  }

  // Has the names in the order in which the code takes their values.
  const std::vector<std::string>& order() const { return order_; }
  const std::string& key() const { return key_; }
  // Has the numbers that are not in the key.
  const std::vector<const Syntax*>& numbers() const { return numbers_; }

 private:
  // Returns true if what is emitted depends on which number stands to the right: an element of a
  // tuple has its own type, and 2 ** -1 is a float.
  static bool decides_types(const Syntax& node) {
    return node.kind == Syntax::Kind::kSubscript ||
           (node.kind == Syntax::Kind::kBinary && node.text == "**");
  }

  // Adds the number's value only if asked to.
  void add_number(const Syntax& node, bool with_value) {
    key_ += static_cast<char>('A' + static_cast<int>(node.kind));
    if (!with_value) {
      key_ += '#';
      numbers_.push_back(&node);
    } else if (node.kind == Syntax::Kind::kInt) {
      key_ += std::to_string(node.integer) + ';';
    } else {
      key_.append(reinterpret_cast<const char*>(&node.number), sizeof(node.number));
    }
  }

  void add_text(const Syntax& node) {
    const bool is_used = node.kind == Syntax::Kind::kName &&
                         std::find(used_.begin(), used_.end(), node.text) != used_.end();
    if (!is_used) {
      key_ += std::to_string(node.text.size()) + ':' + node.text;
      return;
    }
    const auto place = std::find(order_.begin(), order_.end(), node.text);
    key_ += '$' + std::to_string(place - order_.begin()) + ';';
    if (place == order_.end()) order_.push_back(node.text);
  }

  const std::vector<std::string>& used_;
  std::vector<std::string> order_;
  std::vector<const Syntax*> numbers_;
  std::string key_;
};

// Keeps a shape's code, and the registers that each of its numbers goes to.
struct KnownCode {
  std::shared_ptr<const Code> code;
  std::vector<std::pair<int, std::size_t>> registers;  // and the place in Shape::numbers()

  KnownCode(std::shared_ptr<const Code> compiled, const Shape& shape) : code(std::move(compiled)) {
    for (const auto& [index, literal] : code->instructions.literals) {
      const auto place = std::find(shape.numbers().begin(), shape.numbers().end(), literal);
      if (place != shape.numbers().end())
        registers.emplace_back(index, place - shape.numbers().begin());
    }
  }

  SharedCode with_numbers(const Shape& shape) const {
    SharedCode shared{code, {}};
    for (const auto& [index, place] : registers) {
      const Syntax& number = *shape.numbers()[place];
      shared.numbers.emplace_back(index, number.kind == Syntax::Kind::kInt ? IValue(number.integer)
                                                                           : IValue(number.number));
    }
    return shared;
  }
};

// Keeps one text, with every scope that it was compiled in.
struct KnownText {
  std::vector<std::string> free;  // names
  std::unordered_map<std::string, std::shared_ptr<const CompiledExpression>> by_types;
};

constexpr std::size_t kTexts = 8192, kCodes = 8192;

// Leaked, so that no tensor type is freed after torch's own statics.
RecentlyUsed<KnownText>& known_texts() {
  static auto& known = *new RecentlyUsed<KnownText>(kTexts);
  return known;
}

RecentlyUsed<KnownCode>& known_codes() {
  static auto& known = *new RecentlyUsed<KnownCode>(kCodes);
  return known;
}

std::shared_ptr<const CompiledExpression> compiled(const std::string& text, const Syntax& tree,
                                                   const Scope& scope,
                                                   const std::vector<std::string>& used,
                                                   DType dtype, NumberResult numbers) {
  Scope types;
  for (const std::string& name : used) types.emplace(name, scope.at(name));
  Shape shape(used);
  const bool is_shared = shape.add(tree);
  const std::vector<std::string> taken = is_shared ? shape.order() : used;
  std::string key = shape.key();
  for (const std::string& name : taken)
    key += static_cast<char>('0' + static_cast<int>(scope.at(name)));
  key += static_cast<char>('0' + static_cast<int>(dtype));
  key += static_cast<char>('0' + static_cast<int>(numbers));
  const KnownCode* known = is_shared ? known_codes().find(key) : nullptr;
  SharedCode code;
  if (known) {
    code = known->with_numbers(shape);
  } else {
    code.code = compile(text, tree, scope, taken, dtype, numbers);
    if (is_shared) known_codes().put(key, KnownCode(code.code, shape));
  }
  return std::make_shared<Compiled>(text, used, taken, std::move(code), [=] {
    return compile(text, *parse_expression(text), types, taken, dtype, numbers);
  });
}

}  // namespace

std::shared_ptr<const CompiledExpression> compile_expression(const std::string& text,
                                                             const Scope& scope, DType dtype,
                                                             NumberResult numbers) {
  try {
    SyntaxPtr tree;
    KnownText* known = known_texts().find(text);
    if (!known) {
      tree = parse_expression(text);
      const std::set<std::string> free = free_names(*tree);
      known = &known_texts().put(text, {{free.begin(), free.end()}, {}});
    }
    const std::vector<std::string> used = used_of(known->free, scope);
    std::shared_ptr<const CompiledExpression>& entry =
        known->by_types[types_key(used, scope, dtype, numbers)];
    if (!entry)
      entry = compiled(text, tree ? *tree : *parse_expression(text), scope, used, dtype, numbers);
    return entry;
  } catch (const ExpressionError& error) {
    throw invalid(text, error);
  }
}

std::vector<std::string> names_used(const std::string& text, const Scope& scope) {
  try {
    const std::set<std::string> free = free_names(*parse_expression(text));
    return used_of({free.begin(), free.end()}, scope);
  } catch (const ExpressionError& error) {
    throw invalid(text, error);
  }
}

}  // namespace distgrad
