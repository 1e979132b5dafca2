#include "dumps/patterns.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace distgrad::dumps {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::vector<std::string> components(const std::string& name) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    parts.push_back(name.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

bool is_number(const std::string& part) {
  return !part.empty() && std::all_of(part.begin(), part.end(), is_digit);
}

// Returns the number in place of the pattern's star, if there is one star: "3".
std::string star_of(const std::string& name) {
  std::vector<std::string> stars;
  for (const std::string& part : components(name))
    if (is_number(part)) stars.push_back(part);
  return stars.size() == 1 ? stars[0] : "";
}

// Returns "0-3,7"; only the first of many.
std::string ranges_text(const std::vector<std::string>& numbers) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i;
    const auto value = [&](std::size_t k) {
      return std::strtoull(numbers[k].c_str(), nullptr, 10);
    };
    while (end + 1 < numbers.size() && value(end + 1) == value(end) + 1) ++end;
    parts.push_back(end > i ? numbers[i] + "-" + numbers[end] : numbers[i]);
    i = end + 1;
  }
  constexpr std::size_t kMost = 12;
  if (parts.size() > kMost) {
    parts.resize(kMost);
    parts.emplace_back("...");
  }
  return fmt::format("{}", fmt::join(parts, ","));
}

double severity(const ParameterResult& r) {
  return r.worst ? std::min(r.relative_error, 1e300) : 1;  // a missing gradient is off by itself
}

bool is_mild(const ParameterResult& r) {
  return r.explanation == Explanation::kClose || r.explanation == Explanation::kUnclear;
}

bool same_mistake(const ParameterResult& a, const ParameterResult& b) {
  if (a.explanation != b.explanation || a.is_forgiven != b.is_forgiven) return false;
  if (a.explanation == Explanation::kScaled && !a.factor_known && !b.factor_known)
    return has_factor(a, *b.factor) || has_factor(b, *a.factor);
  return a.kind == b.kind && (!a.kind.empty() || a.headline == b.headline);
}

double worst_in(const ResultGroup& group) {
  double worst = 0;
  for (const ParameterResult* r : group.members) worst = std::max(worst, severity(*r));
  return worst;
}

using Names = std::set<std::string_view>;

// Returns every property that may distinguish parameters, with those that have it; the most telling
// first.
std::vector<std::pair<std::string, Names>> properties(std::span<const ParameterResult> all) {
  std::map<std::pair<std::string, std::string>, Names> by_placement;
  std::map<std::string, Names> by_word;
  Names vectors;
  for (const ParameterResult& r : all) {
    for (const auto& placement : r.placements) by_placement[placement].insert(r.name);
    for (const std::string& part : components(r.name))
      if (!is_number(part)) by_word[part].insert(r.name);
    if (r.shape.size() == 1) vectors.insert(r.name);
  }
  std::vector<std::pair<std::string, Names>> found;
  for (auto& [placement, names] : by_placement)
    found.push_back({fmt::format("exactly the parameters that are {} along {}", placement.second,
                                 placement.first),
                     std::move(names)});
  for (auto& [word, names] : by_word)
    found.push_back(
        {fmt::format("exactly the parameters with \"{}\" among the parts of their name", word),
         std::move(names)});
  found.push_back({"exactly the parameters with one dimension", std::move(vectors)});
  return found;
}

class Grouping {
 public:
  explicit Grouping(std::span<const ParameterResult> all)
      : all_(all), properties_(properties(all)) {
    for (const ParameterResult& r : all) ++pattern_sizes_[pattern_of(r.name)];
  }

  std::vector<ResultGroup> groups() {
    std::vector<ResultGroup> groups;
    for (const ParameterResult& r : all_) {
      if (r.is_right()) continue;
      const auto found = std::find_if(groups.begin(), groups.end(), [&](const ResultGroup& g) {
        return same_mistake(*g.members.front(), r);
      });
      if (found == groups.end())
        groups.push_back({r.headline, {&r}, {}, ""});
      else
        found->members.push_back(&r);
    }
    for (ResultGroup& group : groups) {
      group.patterns = patterns_in(group);
      group.common = common_to(group);
      if (group.each_in_its_own_words()) group.headline = group.members.front()->kind;
      if (group.is_in_order()) continue;
      std::stable_sort(group.members.begin(), group.members.end(),
                       [](const auto* a, const auto* b) { return severity(*a) > severity(*b); });
    }
    std::stable_sort(groups.begin(), groups.end(), [](const ResultGroup& a, const ResultGroup& b) {
      const bool x = is_mild(*a.members.front()), y = is_mild(*b.members.front());
      return x != y ? y : worst_in(a) > worst_in(b);
    });
    return groups;
  }

 private:
  std::vector<std::string> patterns_in(const ResultGroup& group) const {
    std::vector<std::string> order;
    std::map<std::string, std::vector<const ParameterResult*>> by_pattern;
    for (const ParameterResult* r : group.members) {
      auto& members = by_pattern[pattern_of(r->name)];
      if (members.empty()) order.push_back(pattern_of(r->name));
      members.push_back(r);
    }
    std::vector<std::string> texts;
    for (const std::string& pattern : order)
      texts.push_back(pattern_text(pattern, by_pattern[pattern]));
    return texts;
  }

  std::string pattern_text(const std::string& pattern,
                           const std::vector<const ParameterResult*>& members) const {
    const int total = pattern_sizes_.at(pattern);
    if (members.size() == 1) return members.front()->name;
    if (static_cast<int>(members.size()) == total)
      return fmt::format("all {} of {}", total, pattern);
    std::vector<std::string> stars;
    for (const ParameterResult* r : members) stars.push_back(star_of(r->name));
    const bool plain =
        std::none_of(stars.begin(), stars.end(), [](const std::string& s) { return s.empty(); });
    return fmt::format("{} of the {} {}{}", members.size(), total, pattern,
                       plain ? fmt::format(" ({})", ranges_text(stars)) : "");
  }

  std::string common_to(const ResultGroup& group) const {
    if (group.members.size() < 2) return {};
    if (group.members.size() == all_.size()) return "every parameter";
    Names names;
    for (const ParameterResult* r : group.members) names.insert(r->name);
    for (const auto& [text, having] : properties_)
      if (having == names) return text;
    return end_of_the_model(group);
  }

  // Backward goes from the last parameter to the first, so a mistake on the way spoils all before
  // it.
  std::string end_of_the_model(const ResultGroup& group) const {
    const std::size_t n = group.members.size();
    const bool first =
        group.members.front() == &all_.front() && group.members.back() == &all_[n - 1];
    const bool last =
        group.members.front() == &all_[all_.size() - n] && group.members.back() == &all_.back();
    if (all_.front().position < 0 || (!first && !last)) return {};
    return fmt::format("exactly the {} {} parameters of the model, {} {}", first ? "first" : "last",
                       n, first ? "up to" : "from",
                       first ? group.members.back()->name : group.members.front()->name);
  }

  std::span<const ParameterResult> all_;
  std::vector<std::pair<std::string, Names>> properties_;
  std::map<std::string, int> pattern_sizes_;
};

}  // namespace

bool natural_less(std::string_view a, std::string_view b) {
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) return static_cast<unsigned char>(a[i]) < static_cast<unsigned char>(b[j]);
      ++i, ++j;
      continue;
    }
    const auto digits = [](std::string_view text, std::size_t& at) {
      while (at < text.size() && text[at] == '0') ++at;
      const std::size_t begin = at;
      while (at < text.size() && is_digit(text[at])) ++at;
      return text.substr(begin, at - begin);
    };
    const std::string_view x = digits(a, i), y = digits(b, j);
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
  }
  if ((a.size() - i) != (b.size() - j)) return a.size() - i < b.size() - j;
  return a < b;  // for "01" and "1"
}

std::string pattern_of(const std::string& name) {
  std::string pattern;
  for (const std::string& part : components(name))
    pattern += (pattern.empty() ? "" : ".") + (is_number(part) ? std::string("*") : part);
  return pattern;
}

bool ResultGroup::each_in_its_own_words() const {
  return std::any_of(members.begin(), members.end(), [&](const ParameterResult* r) {
    return !r->kind.empty() && r->headline != members.front()->headline;
  });
}

bool ResultGroup::is_in_order() const {
  const Explanation e = members.front()->explanation;
  return e == Explanation::kUnexplained || e == Explanation::kClose ||
         e == Explanation::kUnsynchronised || each_in_its_own_words();
}

std::vector<ResultGroup> groups_of(std::span<const ParameterResult> results) {
  return Grouping(results).groups();
}

}  // namespace distgrad::dumps
