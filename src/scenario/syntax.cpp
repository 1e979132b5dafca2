#include "scenario/syntax.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "scenario/tokens.h"

namespace distgrad {
namespace {

using Kind = Syntax::Kind;

// Bounds the recursion of the parser and of all code that walks the tree.
constexpr int kMaxDepth = 200;

SyntaxPtr make(Kind kind, std::size_t place, std::string text = "") {
  auto node = std::make_unique<Syntax>();
  node->kind = kind;
  node->place = place;
  node->text = std::move(text);
  return node;
}

void adopt(Syntax& parent, SyntaxPtr child) {
  if (child) {
    parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > kMaxDepth)
      throw ExpressionError("the expression is nested too deeply", parent.place);
  }
  parent.children.push_back(std::move(child));
}

// Parses by recursive descent, with a function for each rule of Python's grammar, from the loosest
// binding to the tightest.
class Parser {
 public:
  explicit Parser(const std::string& text) : tokens_(tokenize(text)) {}

  SyntaxPtr run() {
    if (now().kind == Token::Kind::kEnd) throw ExpressionError("the expression is empty", 0);
    SyntaxPtr tree = expression();
    if (is("="))
      throw ExpressionError("an assignment is not an expression; use == to compare", now().place);
    if (is(":="))
      throw ExpressionError("':=' is not part of the scenario language; make it a step",
                            now().place);
    if (is(","))
      throw ExpressionError("this is a tuple, not a tensor; one step has one value", now().place);
    if (now().kind != Token::Kind::kEnd) unexpected("an operator");
    return tree;
  }

 private:
  class Nesting {
   public:
    explicit Nesting(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > kMaxDepth)
        throw ExpressionError("the expression is nested too deeply", parser_.now().place);
    }
    ~Nesting() { --parser_.nesting_; }

   private:
    Parser& parser_;
  };

  const Token& now() const { return tokens_[at_]; }
  const Token& after() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }

  bool is(std::string_view text) const {
    return (now().kind == Token::Kind::kOperator || now().kind == Token::Kind::kKeyword) &&
           now().text == text;
  }
  bool take(std::string_view text) {
    if (!is(text)) return false;
    ++at_;
    return true;
  }
  void expect(const char* text) {
    if (!take(text)) unexpected((std::string("'") + text + "'").c_str());
  }
  [[noreturn]] void unexpected(const char* wanted) const {
    const Token& token = now();
    if (token.kind == Token::Kind::kEnd)
      throw ExpressionError(std::string("expected ") + wanted + " before the end", token.place);
    if (token.text == ":=")
      throw ExpressionError("':=' is not part of the scenario language; make it a step",
                            token.place);
    if (token.kind == Token::Kind::kKeyword && token.text != "if" && token.text != "else" &&
        token.text != "for")
      throw ExpressionError("'" + token.text + "' is not part of the scenario language",
                            token.place);
    throw ExpressionError(std::string("expected ") + wanted + ", not '" + token.text + "'",
                          token.place);
  }

  SyntaxPtr expression() {
    const Nesting nesting(*this);
    if (is("lambda") || is("yield") || is("await")) unexpected("an expression");
    SyntaxPtr value = disjunction();
    if (!is("if")) return value;
    SyntaxPtr node = make(Kind::kConditional, now().place);
    ++at_;
    SyntaxPtr condition = disjunction();
    expect("else");
    SyntaxPtr otherwise = expression();
    adopt(*node, std::move(condition));
    adopt(*node, std::move(value));
    adopt(*node, std::move(otherwise));
    return node;
  }

  SyntaxPtr disjunction() { return chain(Kind::kOr, "or", &Parser::conjunction); }
  SyntaxPtr conjunction() { return chain(Kind::kAnd, "and", &Parser::inversion); }
  SyntaxPtr chain(Kind kind, std::string_view word, SyntaxPtr (Parser::*operand)()) {
    SyntaxPtr first = (this->*operand)();
    if (!is(word)) return first;
    SyntaxPtr node = make(kind, now().place, std::string(word));
    adopt(*node, std::move(first));
    while (take(word)) adopt(*node, (this->*operand)());
    return node;
  }

  SyntaxPtr inversion() {
    const Nesting nesting(*this);
    if (!is("not")) return comparison();
    SyntaxPtr node = make(Kind::kUnary, now().place, "not");
    ++at_;
    adopt(*node, inversion());
    return node;
  }

  // Returns the comparison that begins here and how many tokens it has, or "" if there is none.
  std::pair<std::string, int> comparison_here() const {
    if (is("is"))
      throw ExpressionError("'is' is not part of the scenario language; compare with ==",
                            now().place);
    if (is("not") && after().text == "in") return {"not in", 2};
    for (const char* op : {"<", ">", "<=", ">=", "==", "!=", "in"})
      if (is(op)) return {op, 1};
    return {"", 0};
  }
  SyntaxPtr comparison() {
    SyntaxPtr left = binary(0);
    const auto [op, tokens] = comparison_here();
    if (tokens == 0) return left;
    SyntaxPtr node = make(Kind::kCompare, now().place, op);
    at_ += tokens;
    adopt(*node, std::move(left));
    adopt(*node, binary(0));
    if (comparison_here().second != 0)
      throw ExpressionError(
          "chained comparisons are not part of the scenario language; write a < b and b < c",
          now().place);
    return node;
  }

  // Parses | ^ & shifts sums products; each level is left-associative.
  SyntaxPtr binary(std::size_t level) {
    static const std::initializer_list<std::string_view> kLevels[] = {
        {"|"}, {"^"}, {"&"}, {"<<", ">>"}, {"+", "-"}, {"*", "/", "//", "%", "@"}};
    if (level == std::size(kLevels)) return factor();
    SyntaxPtr left = binary(level + 1);
    for (;;) {
      const bool here = std::any_of(kLevels[level].begin(), kLevels[level].end(),
                                    [&](auto op) { return is(op); });
      if (!here) return left;
      SyntaxPtr node = make(Kind::kBinary, now().place, now().text);
      ++at_;
      adopt(*node, std::move(left));
      adopt(*node, binary(level + 1));
      left = std::move(node);
    }
  }

  SyntaxPtr factor() {
    const Nesting nesting(*this);
    if (!is("-") && !is("+") && !is("~")) return power();
    const Token sign = now();
    ++at_;
    SyntaxPtr operand = factor();
    // A negative literal is a constant, so that it can be used where a constant must.
    if (sign.text == "-" && (operand->kind == Kind::kInt || operand->kind == Kind::kFloat)) {
      operand->integer = -operand->integer;
      operand->number = -operand->number;
      operand->place = sign.place;
      return operand;
    }
    SyntaxPtr node = make(Kind::kUnary, sign.place, sign.text);
    adopt(*node, std::move(operand));
    return node;
  }

  SyntaxPtr power() {
    SyntaxPtr base = primary();
    if (!is("**")) return base;
    SyntaxPtr node = make(Kind::kBinary, now().place, "**");
    ++at_;
    adopt(*node, std::move(base));
    adopt(*node, factor());
    return node;
  }

  SyntaxPtr primary() {
    SyntaxPtr value = atom();
    for (;;) {
      if (take(".")) {
        if (now().kind != Token::Kind::kName) unexpected("a name");
        SyntaxPtr node = make(Kind::kAttribute, now().place, now().text);
        ++at_;
        adopt(*node, std::move(value));
        value = std::move(node);
      } else if (is("(")) {
        value = call(std::move(value));
      } else if (is("[")) {
        value = subscript(std::move(value));
      } else {
        return value;
      }
    }
  }

  SyntaxPtr call(SyntaxPtr callee) {
    SyntaxPtr node = make(Kind::kCall, callee->place);
    adopt(*node, std::move(callee));
    expect("(");
    while (!is(")")) {
      argument(*node);
      if (!is(")") && !take(",")) unexpected("',' or ')'");
    }
    ++at_;
    for (std::size_t i = 1; i < node->children.size(); ++i)
      if (node->children[i]->kind == Kind::kGenerator &&
          (node->children.size() > 2 || !node->keywords.empty()))
        throw ExpressionError("a generator must be the only argument", node->children[i]->place);
    return node;
  }

  void argument(Syntax& node) {
    if (is("*") || is("**"))
      throw ExpressionError(
          "'" + now().text + "' in arguments is not part of the scenario language", now().place);
    if (now().kind == Token::Kind::kName && after().text == "=" &&
        after().kind == Token::Kind::kOperator) {
      std::string name = now().text;
      const std::size_t place = now().place;
      at_ += 2;
      for (const auto& [known, unused] : node.keywords)
        if (known == name)
          throw ExpressionError("the keyword argument " + name + " is given twice", place);
      SyntaxPtr value = expression();
      node.depth = std::max(node.depth, value->depth + 1);
      node.keywords.emplace_back(std::move(name), std::move(value));
      return;
    }
    if (!node.keywords.empty())
      throw ExpressionError("a positional argument cannot follow a keyword argument", now().place);
    SyntaxPtr value = expression();
    if (is("for")) value = comprehension(std::move(value), Kind::kGenerator);
    adopt(node, std::move(value));
  }

  SyntaxPtr subscript(SyntaxPtr object) {
    SyntaxPtr node = make(Kind::kSubscript, now().place);
    adopt(*node, std::move(object));
    expect("[");
    if (is("]")) unexpected("a subscript");
    bool comma = false;
    while (!is("]")) {
      adopt(*node, subscript_item());
      comma = take(",");
      if (!comma && !is("]")) unexpected("']'");
    }
    ++at_;
    // x[(0, 1)] is x[0, 1] in Python. x[0,] has a tuple of one, which is x[0] to a tensor.
    if (node->children.size() == 2 && node->children[1]->kind == Kind::kTuple && !comma) {
      SyntaxPtr tuple = std::move(node->children[1]);
      node->children.pop_back();
      if (tuple->children.empty())
        tuple->children.push_back(make(Kind::kEllipsis, tuple->place));  // x[()]
      for (SyntaxPtr& item : tuple->children) node->children.push_back(std::move(item));
      comma = true;
    }
    if (comma) node->text.assign(1, ',');  // a tuple of any length, which lists do not take
    return node;
  }

  SyntaxPtr subscript_item() {
    if (is("...")) {
      SyntaxPtr node = make(Kind::kEllipsis, now().place);
      ++at_;
      return node;
    }
    const std::size_t place = now().place;
    SyntaxPtr parts[3];
    if (!is(":")) {
      parts[0] = expression();
      if (!is(":")) return std::move(parts[0]);
    }
    for (int i = 1; i < 3 && take(":"); ++i)
      if (!is(":") && !is(",") && !is("]")) parts[i] = expression();
    SyntaxPtr node = make(Kind::kSlice, place);
    for (SyntaxPtr& part : parts) adopt(*node, std::move(part));
    return node;
  }

  SyntaxPtr atom() {
    const Token token = now();
    switch (token.kind) {
      case Token::Kind::kName:
        ++at_;
        return make(Kind::kName, token.place, token.text);
      case Token::Kind::kInt:
        return integer();
      case Token::Kind::kFloat:
        return real();
      case Token::Kind::kString:
        return string();
      case Token::Kind::kKeyword:
        for (auto [word, kind] :
             {std::pair{"True", Kind::kTrue}, {"False", Kind::kFalse}, {"None", Kind::kNone}})
          if (token.text == word) {
            ++at_;
            return make(kind, token.place);
          }
        unexpected("an expression");
      default:
        break;
    }
    if (is("(")) return parenthesized();
    if (is("[")) return list();
    if (is("...")) throw ExpressionError("'...' stands only in subscripts", token.place);
    unexpected("an expression");
  }

  SyntaxPtr integer() {
    SyntaxPtr node = make(Kind::kInt, now().place);
    const std::string& digits = now().text;
    const auto result =
        std::from_chars(digits.data(), digits.data() + digits.size(), node->integer);
    if (result.ec != std::errc())
      throw ExpressionError("this integer does not fit in 64 bits", now().place);
    ++at_;
    return node;
  }

  SyntaxPtr real() {
    SyntaxPtr node = make(Kind::kFloat, now().place);
    const std::string& digits = now().text;
    const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), node->number);
    if (result.ec != std::errc())  // Python would read 0.0 or inf
      throw ExpressionError("this number is out of float64's range", now().place);
    ++at_;
    return node;
  }

  SyntaxPtr string() {
    SyntaxPtr node = make(Kind::kString, now().place, now().text);
    ++at_;
    if (now().kind == Token::Kind::kString)
      throw ExpressionError("strings side by side are not part of the scenario language",
                            now().place);
    return node;
  }

  SyntaxPtr parenthesized() {
    const std::size_t place = now().place;
    expect("(");
    SyntaxPtr tuple = make(Kind::kTuple, place);
    if (take(")")) return tuple;
    refuse_star();
    SyntaxPtr value = expression();
    if (is("for"))
      throw ExpressionError(
          "a generator stands only as the argument of sum, max or min; write [...]", now().place);
    if (take(")")) return value;
    adopt(*tuple, std::move(value));
    while (!is(")")) {
      if (!take(",")) unexpected("')'");
      if (is(")")) break;
      refuse_star();
      adopt(*tuple, expression());
    }
    ++at_;
    return tuple;
  }

  SyntaxPtr list() {
    SyntaxPtr node = make(Kind::kList, now().place);
    expect("[");
    while (!is("]")) {
      refuse_star();
      SyntaxPtr value = expression();
      if (is("for") && node->children.empty()) {
        SyntaxPtr result = comprehension(std::move(value), Kind::kComprehension);
        expect("]");
        return result;
      }
      adopt(*node, std::move(value));
      if (!is("]")) {
        if (!take(",")) unexpected("']'");
      }
    }
    ++at_;
    return node;
  }

  void refuse_star() const {
    if (is("*"))
      throw ExpressionError("'*' before a value is not part of the scenario language", now().place);
  }

  SyntaxPtr comprehension(SyntaxPtr element, Kind kind) {
    SyntaxPtr node = make(kind, now().place);
    expect("for");
    const bool parenthesis = take("(");
    do {
      if (now().kind != Token::Kind::kName) unexpected("a name");
      if (std::find(node->targets.begin(), node->targets.end(), now().text) != node->targets.end())
        throw ExpressionError("the name " + now().text + " is bound twice", now().place);
      node->targets.push_back(now().text);
      ++at_;
    } while (take(",") && !is("in") && !is(")"));
    if (parenthesis) expect(")");
    if (!take("in")) unexpected("'in'");
    adopt(*node, std::move(element));
    adopt(*node, disjunction());
    if (take("if")) adopt(*node, disjunction());
    if (is("if") || is("for"))
      throw ExpressionError("one 'for' and one 'if' are allowed in a comprehension", now().place);
    return node;
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
};

void collect_free_names(const Syntax& node, std::set<std::string>& bound,
                        std::set<std::string>& found) {
  if (node.kind == Kind::kName && !bound.contains(node.text)) found.insert(node.text);
  const bool binds = node.kind == Kind::kComprehension || node.kind == Kind::kGenerator;
  // The iterable is outside the scope.
  if (binds) collect_free_names(*node.children[1], bound, found);
  std::vector<std::string> added;
  for (const std::string& target : node.targets)
    if (bound.insert(target).second) added.push_back(target);
  for (std::size_t i = 0; i < node.children.size(); ++i)
    if (node.children[i] && !(binds && i == 1)) collect_free_names(*node.children[i], bound, found);
  for (const auto& [name, value] : node.keywords) collect_free_names(*value, bound, found);
  for (const std::string& name : added) bound.erase(name);
}

}  // namespace

SyntaxPtr parse_expression(const std::string& text) { return Parser(text).run(); }

std::set<std::string> free_names(const Syntax& tree) {
  std::set<std::string> bound, found;
  collect_free_names(tree, bound, found);
  return found;
}

bool takes_name(const std::string& expression, const std::string& name) {
  return free_names(*parse_expression(expression)).contains(name);
}

std::string dotted_name(const Syntax& node) {
  if (node.kind == Kind::kName) return node.text;
  if (node.kind != Kind::kAttribute) return "";
  const std::string object = dotted_name(*node.children[0]);
  return object.empty() ? "" : object + "." + node.text;
}

}  // namespace distgrad
