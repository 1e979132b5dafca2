#include "report/html_data.h"

#include <map>
#include <set>

#include "model/findings.h"
#include "report/case_words.h"
#include "report/html_case.h"
#include "report/program_text.h"
#include "report/valid_text.h"
#include "report/words.h"
#include "report/worst_first.h"

namespace distgrad {
namespace {

using Json = nlohmann::ordered_json;

// Limits bytes to what a browser opens at once, even on a slow machine.
constexpr std::size_t kMostDetails = 24'000'000;
constexpr std::size_t kMostPictures = 12'000'000;  // above this, cases come without heat maps
constexpr std::size_t kLargestCase = 200'000;      // above this, the case's pictures are left out
constexpr std::size_t kPiece = 250'000;            // bytes, about
constexpr std::string_view kStatuses[] = {"FAIL", "ERR", "ok", "skip", "disp"};

// Gives each text a number, in the order of appearance.
class Numbers {
 public:
  std::size_t of(const std::string& text) {
    const auto [place, is_new] = numbers_.emplace(text, list_.size());
    if (is_new) list_.push_back(valid_text(text));
    return place->second;
  }
  const Json& list() const { return list_; }

 private:
  std::map<std::string, std::size_t> numbers_;
  Json list_ = Json::array();
};

// Escapes whatever could end a script element or start a comment.
std::string inert(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size() + text.size() / 16);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest(text.data() + i, text.size() - i);
    if (text[i] == '<') {
      out += "\\u003c";
    } else if (text[i] == '>') {
      out += "\\u003e";
    } else if (text[i] == '&') {
      out += "\\u0026";
    } else if (rest.starts_with("\xE2\x80\xA8") || rest.starts_with("\xE2\x80\xA9")) {
      out += rest[2] == '\xA8' ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

Json lines_json(const std::vector<ProgramLine>& lines) {
  Json list = Json::array();
  for (const ProgramLine& line : lines)
    list.push_back({line.name, valid_text(line.text), line.how, line.is_collective});
  return list;
}

Json file_json(const Scenario& scenario) {
  const ProgramText program = program_text(scenario);
  return {{"file", valid_text(scenario.file)},    {"name", valid_text(scenario.name)},
          {"note", valid_text(scenario.note)},    {"groups", lines_json(program.groups)},
          {"inputs", lines_json(program.inputs)}, {"steps", lines_json(program.steps)},
          {"loss", valid_text(program.loss)},     {"single", lines_json(program.single_device)}};
}

// Orders what went wrong first, the worst first; then expected mismatches and errors, which
// somebody may want to see; then the rest, in the run's order.
std::vector<std::size_t> by_interest(const Report& report) {
  std::vector<std::size_t> order;
  const CaseResult* first = report.cases.data();
  for (const CaseResult* r : worst_first(report))
    order.push_back(static_cast<std::size_t>(r - first));
  for (const bool plain : {false, true})
    for (std::size_t i = 0; i < report.cases.size(); ++i) {
      const CaseResult& r = report.cases[i];
      const bool is_plain =
          (r.verdict == Verdict::kMatch && !is_vacuous(r)) || r.verdict == Verdict::kSkipped;
      if (!is_wrong(r) && is_plain == plain) order.push_back(i);
    }
  return order;
}

struct Place {
  int piece = -1;  // -1: no details
  std::size_t index = 0;
};

class Details {
 public:
  Details(const Report& report, const FormatContext& context)
      : places(report.cases.size()), context_(context) {
    for (const std::size_t i : by_interest(report)) add(report.cases[i], places[i]);
    close();
  }

  std::vector<Place> places;  // by case
  std::vector<std::string> pieces;
  SharedTexts texts;
  std::size_t left_out = 0;
  std::size_t without_maps = 0;

 private:
  void add(const CaseResult& r, Place& place) {
    const std::size_t used = bytes_ + texts.bytes();
    if (used > kMostDetails) {
      ++left_out;
      return;
    }
    const bool maps = used <= kMostPictures;
    std::string text = inert(html_case(r, {maps, trace_of(r)}, texts));
    if (text.size() > kLargestCase) text = inert(html_case(r, {false, nullptr}, texts));
    if (!maps && is_wrong(r)) ++without_maps;
    place = {static_cast<int>(pieces.size()), count_};
    piece_ += (count_++ == 0 ? "[" : ",\n") + text;
    bytes_ += text.size();
    if (piece_.size() > kPiece) close();
  }

  const ValueTrace* trace_of(const CaseResult& r) const {
    if (!context_.traces) return nullptr;
    const auto found = context_.traces->find(r.which.id);
    return found == context_.traces->end() ? nullptr : &found->second;
  }

  void close() {
    if (count_ == 0) return;
    pieces.push_back(piece_ + "]");
    piece_.clear();
    count_ = 0;
  }

  const FormatContext& context_;
  std::string piece_;
  std::size_t count_ = 0;  // in the open piece
  std::size_t bytes_ = 0;  // of all
};

std::size_t status_index(const CaseResult& r) {
  if (r.broken) return 1;
  if (!r.as_expected) return r.verdict == Verdict::kDisputed ? 4 : 3;
  return *r.as_expected ? 2 : 0;
}

double largest_relative_error(const CaseResult& r) {
  const double error = badness(r).second;
  return error < 1e300 ? error : 1e300;  // JSON has no infinity
}

// Holds what the cases refer to by number.
struct Tables {
  Numbers findings, subjects, headlines;
  std::map<const Scenario*, std::size_t> numbers;
  Json files = Json::array();

  std::size_t file(const Scenario* scenario) {
    const auto [place, is_new] = numbers.emplace(scenario, numbers.size());
    if (is_new) files.push_back(file_json(scenario ? *scenario : Scenario()));
    return place->second;
  }
};

// Returns what distinguishes the case from others of its file: ":subject=in_place".
std::string place_in_file(const Case& c) {
  const std::string& file = c.scenario ? c.scenario->file : c.id;
  return c.id.starts_with(file) ? c.id.substr(file.size()) : c.id;
}

Json case_row(const CaseResult& r, const Place& details, Tables& tables) {
  const std::string finding = r.findings.empty() ? std::string() : r.findings.front().rule;
  return {tables.file(r.which.scenario),
          valid_text(place_in_file(r.which)),
          status_index(r),
          static_cast<int>(r.verdict),
          finding.empty() ? -1 : static_cast<int>(tables.findings.of(finding)),
          tables.subjects.of(r.which.subject),
          tables.headlines.of(headline(r)),
          largest_relative_error(r),
          r.elapsed_s,
          details.piece,
          details.index};
}

Json finding_helps(const Report& report) {
  std::set<std::string> used;
  for (const CaseResult& r : report.cases)
    for (const Finding& f : r.findings) used.insert(f.rule);
  Json helps = Json::object();
  for (const FindingRow& row : kFindings)
    if (used.contains(std::string(row.name)) && !is_explained_above(row, report))
      helps[row.name] = {row.meaning, row.help};
  return helps;
}

std::string explain_command(const std::string& again) {
  const bool allows = again.find(" --allow-code") != std::string::npos;
  return std::string("distgrad explain") + (allows ? " --allow-code" : "");
}

}  // namespace

std::string_view status_word(const CaseResult& r) { return kStatuses[status_index(r)]; }

bool is_explained_above(const FindingRow& row, const Report& report) {
  return row.name == std::string_view("unexplained") && !report.printed.empty();
}

HtmlData html_data(const Report& report, const FormatContext& context) {
  Details details(report, context);
  Tables tables;
  Json cases = Json::array();
  for (std::size_t i = 0; i < report.cases.size(); ++i)
    cases.push_back(case_row(report.cases[i], details.places[i], tables));
  const Json index = {{"again", valid_text(context.text.again)},
                      {"again_names_case", context.text.again_names_case},
                      {"explain", explain_command(context.text.again)},
                      {"simulated", context.text.simulated},
                      {"statuses", kStatuses},
                      {"verdicts", kVerdicts},
                      {"findings", tables.findings.list()},
                      {"subjects", tables.subjects.list()},
                      {"headlines", tables.headlines.list()},
                      {"helps", finding_helps(report)},
                      {"files", std::move(tables.files)},
                      {"cases", std::move(cases)},
                      {"order", by_interest(report)}};
  return {inert(index), inert(details.texts.all()), std::move(details.pieces), details.left_out,
          details.without_maps};
}

}  // namespace distgrad
