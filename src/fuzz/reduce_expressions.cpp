// Simplifies expressions: it puts a subexpression or a constant in their place.
#include "fuzz/reductions.h"
#include "scenario/syntax.h"
#include "scenario/syntax_text.h"

namespace distgrad {
namespace {

using Kind = Syntax::Kind;

SyntaxPtr integer(std::int64_t value) {
  auto node = std::make_unique<Syntax>();
  node->kind = Kind::kInt;
  node->integer = value;
  return node;
}

SyntaxPtr real(double value) {
  auto node = std::make_unique<Syntax>();
  node->kind = Kind::kFloat;
  node->number = value;
  return node;
}

bool counts_ranks(const std::string& name) {
  return name == "rank" || name == "world_size" || name.ends_with("_rank") ||
         name.ends_with("_size");
}

bool is_value(const SyntaxPtr& node) {
  return node && node->kind != Kind::kGenerator && node->kind != Kind::kString &&
         node->kind != Kind::kNone && node->kind != Kind::kSlice && node->kind != Kind::kEllipsis &&
         node->kind != Kind::kTrue && node->kind != Kind::kFalse;
}

// Collects what may replace a node.
class Replacements {
 public:
  std::vector<SyntaxPtr> of(const Syntax& node) {
    if (node.kind == Kind::kInt) {
      for (const int simple : {0, 1, 2}) found_.push_back(integer(simple));
    } else if (node.kind == Kind::kFloat) {
      for (const double simple : {0.0, 1.0, 2.0}) found_.push_back(real(simple));
    } else if (node.kind == Kind::kName) {
      add_for_name(node);
    } else {
      add_parts(node);
      add_shorter(node);
      found_.push_back(real(1.0));
    }
    return std::move(found_);
  }

 private:
  void add_for_name(const Syntax& node) {
    if (!counts_ranks(node.text)) return found_.push_back(real(1.0));
    for (const int simple : {0, 1, 2}) found_.push_back(integer(simple));
  }

  void add(const SyntaxPtr& part) {
    if (!is_value(part)) return;
    if (part->kind == Kind::kList || part->kind == Kind::kTuple) {
      for (const SyntaxPtr& item : part->children)
        if (is_value(item)) found_.push_back(copy_of(*item));
    } else {
      found_.push_back(copy_of(*part));
    }
  }

  void add_parts(const Syntax& node) {
    if (node.kind == Kind::kCall) {
      const Syntax& callee = *node.children[0];
      if (callee.kind == Kind::kAttribute && !dotted_name(callee).starts_with("torch."))
        add(callee.children[0]);
      for (std::size_t i = 1; i < node.children.size(); ++i) add(node.children[i]);
      for (const auto& [name, value] : node.keywords) add(value);
    } else if (node.kind == Kind::kSubscript || node.kind == Kind::kAttribute) {
      if (!dotted_name(node).starts_with("torch.")) add(node.children[0]);
    } else if (node.kind == Kind::kConditional) {
      add(node.children[1]);
      add(node.children[2]);
    } else if (node.kind != Kind::kComprehension && node.kind != Kind::kGenerator &&
               node.kind != Kind::kSlice) {
      for (const SyntaxPtr& child : node.children) add(child);
    }
  }

  // Adds the node with one argument, element or subscript less.
  void add_shorter(const Syntax& node) {
    const bool call = node.kind == Kind::kCall, subscript = node.kind == Kind::kSubscript;
    const bool list = node.kind == Kind::kList || node.kind == Kind::kTuple;
    const std::size_t first = list ? 0 : 1, least = list ? 1 : first;
    if (call || ((list || subscript) && node.children.size() > first + 1))
      for (std::size_t i = first; i < node.children.size() && node.children.size() > least; ++i) {
        SyntaxPtr shorter = copy_of(node);
        shorter->children.erase(shorter->children.begin() + static_cast<std::ptrdiff_t>(i));
        found_.push_back(std::move(shorter));
      }
    for (std::size_t i = 0; i < node.keywords.size(); ++i) {
      SyntaxPtr shorter = copy_of(node);
      shorter->keywords.erase(shorter->keywords.begin() + static_cast<std::ptrdiff_t>(i));
      found_.push_back(std::move(shorter));
    }
  }

  std::vector<SyntaxPtr> found_;
};

// Calls back for every node with a value, with the place that holds it, outermost first.
void for_each_slot(SyntaxPtr& slot, const std::function<void(SyntaxPtr&)>& call) {
  if (!slot) return;
  if (is_value(slot)) call(slot);
  const bool is_call = slot->kind == Kind::kCall;
  if (is_call) {
    SyntaxPtr& callee = slot->children[0];
    if (callee->kind == Kind::kAttribute && !dotted_name(*callee).starts_with("torch."))
      for_each_slot(callee->children[0], call);
  } else if (dotted_name(*slot).starts_with("torch.")) {
    return;
  }
  for (std::size_t i = is_call ? 1 : 0; i < slot->children.size(); ++i)
    for_each_slot(slot->children[i], call);
  for (auto& [name, value] : slot->keywords) for_each_slot(value, call);
}

void reduce_expression(const Document& document, const Place& place, Reductions& out) {
  SyntaxPtr tree;
  try {
    tree = parse_expression(document[place].get<std::string>());
  } catch (const ExpressionError&) {
    return;
  }
  std::vector<std::string> texts;
  for_each_slot(tree, [&](SyntaxPtr& slot) {
    for (SyntaxPtr& replacement : Replacements().of(*slot)) {
      std::swap(slot, replacement);
      texts.push_back(text_of(*tree));
      std::swap(slot, replacement);
    }
  });
  for (std::string& text : texts) {
    Document candidate = document;
    std::string what = place.back() + ": " + text;
    candidate[place] = std::move(text);
    out.push_back({std::move(what), std::move(candidate)});
  }
}

}  // namespace

void reduce_expressions(const Document& document, Reductions& out) {
  for (const Place& place : expressions_of(document)) reduce_expression(document, place, out);
}

}  // namespace distgrad
