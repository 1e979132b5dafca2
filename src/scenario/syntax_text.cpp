#include "scenario/syntax_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace distgrad {
namespace {

using Kind = Syntax::Kind;

// Says how tightly Python binds, as the parser's rules do.
enum Binding : int {
  kLoosest,
  kDisjunction,
  kConjunction,
  kInversion,
  kComparison,
  kBinaryOr,
  kBinaryXor,
  kBinaryAnd,
  kShift,
  kSum,
  kProduct,
  kSign,
  kPower,
  kPrimary,
};

Binding binding_of_operator(const std::string& op) {
  if (op == "|") return kBinaryOr;
  if (op == "^") return kBinaryXor;
  if (op == "&") return kBinaryAnd;
  if (op == "<<" || op == ">>") return kShift;
  if (op == "+" || op == "-") return kSum;
  if (op == "**") return kPower;
  return kProduct;
}

Binding binding_of(const Syntax& node) {
  switch (node.kind) {
    case Kind::kConditional:
      return kLoosest;
    case Kind::kOr:
      return kDisjunction;
    case Kind::kAnd:
      return kConjunction;
    case Kind::kCompare:
      return kComparison;
    case Kind::kUnary:
      return node.text == "not" ? kInversion : kSign;
    case Kind::kInt:
      return node.integer < 0 ? kSign : kPrimary;
    case Kind::kFloat:
      return std::signbit(node.number) ? kSign : kPrimary;
    case Kind::kBinary:
      return binding_of_operator(node.text);
    default:
      return kPrimary;
  }
}

std::string number_text(double number) {
  std::string text = fmt::format("{}", number);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

class Writer {
 public:
  std::string take() { return std::move(out_); }

  // Writes parentheses if the place binds more tightly than the node.
  void write(const Syntax& node, Binding place) {
    const bool parentheses = binding_of(node) < place;
    if (parentheses) out_ += '(';
    write(node);
    if (parentheses) out_ += ')';
  }

 private:
  void write(const Syntax& node) {
    switch (node.kind) {
      case Kind::kName:
        out_ += node.text;
        break;
      case Kind::kInt:
        out_ += std::to_string(node.integer);
        break;
      case Kind::kFloat:
        out_ += number_text(node.number);
        break;
      case Kind::kString: {
        const char quote = node.text.find('\'') == std::string::npos ? '\'' : '"';
        out_ += quote + node.text + quote;
        break;
      }
      case Kind::kTrue:
        out_ += "True";
        break;
      case Kind::kFalse:
        out_ += "False";
        break;
      case Kind::kNone:
        out_ += "None";
        break;
      case Kind::kEllipsis:
        out_ += "...";
        break;
      case Kind::kList:
        write_list(node, 0, "[", "]");
        break;
      case Kind::kTuple:
        write_list(node, 0, "(", node.children.size() == 1 ? ",)" : ")");
        break;
      case Kind::kComprehension:
        out_ += '[';
        write_comprehension(node);
        out_ += ']';
        break;
      case Kind::kGenerator:
        write_comprehension(node);
        break;
      case Kind::kAttribute:
        write_object(*node.children[0]);
        out_ += '.' + node.text;
        break;
      case Kind::kCall:
        write_call(node);
        break;
      case Kind::kSubscript:
        write(*node.children[0], kPrimary);
        write_list(node, 1, "[", node.children.size() == 2 && node.text == "," ? ",]" : "]");
        break;
      case Kind::kSlice:
        write_slice(node);
        break;
      default:
        write_operation(node);
    }
  }

  void write_operation(const Syntax& node) {
    const Binding binding = binding_of(node);
    const auto next = static_cast<Binding>(binding + 1);
    switch (node.kind) {
      case Kind::kUnary:
        out_ += node.text == "not" ? "not " : node.text;
        write(*node.children[0], binding);
        break;
      case Kind::kBinary:
        write(*node.children[0], binding == kPower ? kPrimary : binding);
        out_ += binding == kPower ? "**" : ' ' + node.text + ' ';
        write(*node.children[1], binding == kPower ? kSign : next);
        break;
      case Kind::kCompare:
        write(*node.children[0], kBinaryOr);
        out_ += ' ' + node.text + ' ';
        write(*node.children[1], kBinaryOr);
        break;
      case Kind::kConditional:
        write(*node.children[1], kDisjunction);
        out_ += " if ";
        write(*node.children[0], kDisjunction);
        out_ += " else ";
        write(*node.children[2], kLoosest);
        break;
      default:  // and, or
        for (std::size_t i = 0; i < node.children.size(); ++i) {
          if (i > 0) out_ += node.kind == Kind::kAnd ? " and " : " or ";
          write(*node.children[i], next);
        }
    }
  }

  // Writes a number in parentheses, since 2.real would be a number.
  void write_object(const Syntax& node) {
    const bool number = node.kind == Kind::kInt || node.kind == Kind::kFloat;
    if (number) out_ += '(';
    write(node, kPrimary);
    if (number) out_ += ')';
  }

  void write_list(const Syntax& node, std::size_t first, const char* begin, const char* end) {
    out_ += begin;
    for (std::size_t i = first; i < node.children.size(); ++i) {
      if (i > first) out_ += ", ";
      write(*node.children[i], kLoosest);
    }
    out_ += end;
  }

  void write_call(const Syntax& node) {
    write(*node.children[0], kPrimary);
    write_list(node, 1, "(", "");
    bool first = node.children.size() == 1;
    for (const auto& [name, value] : node.keywords) {
      if (!first) out_ += ", ";
      first = false;
      out_ += name + '=';
      write(*value, kLoosest);
    }
    out_ += ')';
  }

  void write_slice(const Syntax& node) {
    if (node.children[0]) write(*node.children[0], kLoosest);
    out_ += ':';
    if (node.children[1]) write(*node.children[1], kLoosest);
    if (!node.children[2]) return;
    out_ += ':';
    write(*node.children[2], kLoosest);
  }

  void write_comprehension(const Syntax& node) {
    write(*node.children[0], kLoosest);
    out_ += " for ";
    for (std::size_t i = 0; i < node.targets.size(); ++i)
      out_ += (i > 0 ? ", " : "") + node.targets[i];
    out_ += " in ";
    write(*node.children[1], kDisjunction);
    if (node.children.size() < 3) return;
    out_ += " if ";
    write(*node.children[2], kDisjunction);
  }

  std::string out_;
};

bool binds(const Syntax& node, const std::string& name) {
  return std::find(node.targets.begin(), node.targets.end(), name) != node.targets.end();
}

void substitute(SyntaxPtr& slot, const std::string& name, const Syntax& by) {
  if (!slot) return;
  if (slot->kind == Kind::kName) {
    if (slot->text == name) slot = copy_of(by);
    return;
  }
  // If a comprehension binds the name, only its iterable is outside.
  if (binds(*slot, name)) return substitute(slot->children[1], name, by);
  const bool calls_by_name =
      slot->kind == Kind::kCall && slot->children[0]->kind == Kind::kName;  // sum(...)
  for (std::size_t i = calls_by_name ? 1 : 0; i < slot->children.size(); ++i)
    substitute(slot->children[i], name, by);
  for (auto& [keyword, value] : slot->keywords) substitute(value, name, by);
}

}  // namespace

std::string text_of(const Syntax& node) {
  Writer writer;
  writer.write(node, kLoosest);
  return writer.take();
}

SyntaxPtr copy_of(const Syntax& node) {
  auto copy = std::make_unique<Syntax>();
  copy->kind = node.kind;
  copy->place = node.place;
  copy->text = node.text;
  copy->integer = node.integer;
  copy->number = node.number;
  copy->targets = node.targets;
  copy->depth = node.depth;
  for (const SyntaxPtr& child : node.children)
    copy->children.push_back(child ? copy_of(*child) : nullptr);
  for (const auto& [name, value] : node.keywords)
    copy->keywords.emplace_back(name, copy_of(*value));
  return copy;
}

SyntaxPtr substituted(const Syntax& tree, const std::string& name, const Syntax& by) {
  SyntaxPtr result = copy_of(tree);
  substitute(result, name, by);
  return result;
}

}  // namespace distgrad
