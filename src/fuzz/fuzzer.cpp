#include "fuzz/fuzzer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "base/error.h"
#include "base/interrupts.h"
#include "base/lines.h"
#include "base/version.h"
#include "fuzz/generator.h"
#include "fuzz/probe.h"
#include "fuzz/shrink.h"
#include "model/libraries.h"
#include "model/subject_text.h"
#include "scenario/cases.h"
#include "scenario/parse.h"

namespace distgrad {
namespace {

// At the end of a batch the ranks wait for its last programs, so it should not be small; failures
// are reported after it.
constexpr std::size_t kFirstBatch = 64, kLargestBatch = 1024;
constexpr double kBatchSeconds = 1.5;

// Limit the programs that shrinking may try. One that hangs takes its whole timeout each time, and
// one that kills a rank costs a team of them, so of those it tries fewer, few at a time, and not
// longer than this.
constexpr std::size_t kMostTried = 800, kMostTriedBroken = 48, kBatchBroken = 4;
constexpr double kBrokenSeconds = 60;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool offers_any(const fuzz::Offers& offers) {
  return std::any_of(offers.begin(), offers.end(), [](const fuzz::Offer& o) { return o.any(); });
}

const CollectiveCall* call_of(const Scenario& scenario, const std::string& step) {
  for (const Step& s : scenario.steps)
    if (s.name == step) return s.collective();
  return nullptr;
}

}  // namespace

// Holds a program with its subject and its result.
struct Fuzzer::Item {
  std::uint64_t index = 0;
  nlohmann::ordered_json document;
  std::string subject;
  std::unique_ptr<Scenario> scenario;  // null: the parser refused it
  std::optional<Case> which;
  std::optional<CaseResult> result;
  std::string invalid;  // not empty: why it is no valid program
  bool is_probe = false;

  bool has_failed() const {
    return !invalid.empty() || (result && (result->verdict == Verdict::kMismatch ||
                                           result->verdict == Verdict::kError));
  }

  FuzzKey key() const {
    if (!invalid.empty()) return {subject, "invalid", "", ""};
    std::string rule, step, collective;
    if (result->error) {
      rule = name_of(result->error->kind);
      step = result->error->step;
    } else if (!result->findings.empty()) {
      rule = result->findings[0].rule;
      step = result->findings[0].step;
    } else {
      rule = "unexplained";
    }
    const CollectiveCall* call = call_of(*scenario, step);
    if (!call) return {subject, rule, "", ""};
    const CollectiveTraits& kind = traits(call->kind);
    return {subject, rule, std::string(kind.name),
            kind.takes_op ? std::string(name_of(call->op)) : ""};
  }

  std::string text() const {
    if (!invalid.empty()) return invalid;
    if (result->error) return result->error->message;
    return result->findings.empty() ? result->why : result->findings[0].text;
  }
};

// Puts the verifier's results into the items.
class Fuzzer::Outcomes : public VerifyListener {
 public:
  explicit Outcomes(const std::vector<std::unique_ptr<Item>>& items) {
    for (const auto& item : items)
      if (item->scenario) by_scenario_.emplace(item->scenario->file, item.get());
  }
  void on_result(CaseResult result) override {
    by_scenario_.at(result.which.scenario->file)->result = std::move(result);
  }
  void on_invalid(InvalidFile invalid) override {
    const auto found = by_scenario_.find(invalid.file);
    if (found == by_scenario_.end())
      throw UserError("fuzz: " + invalid.file + ": " + invalid.message);
    found->second->invalid = invalid.pointer + ": " + invalid.message;
  }
  void on_progress(std::size_t, std::size_t) override {}

 private:
  // Finds items by the name that stands for their file's.
  std::unordered_map<std::string, Item*> by_scenario_;
};

Fuzzer::Fuzzer(FuzzOptions options, Interpreters& interpreters, FuzzListener& listener)
    : options_(std::move(options)),
      interpreters_(interpreters),
      listener_(listener),
      next_(options_.first) {}

Fuzzer::~Fuzzer() = default;

bool Fuzzer::is_over() const {
  return interrupted_by() || (options_.count && next_ >= options_.first + *options_.count) ||
         (options_.seconds && now_s() - started_ > *options_.seconds);
}

void Fuzzer::run() {
  started_ = now_s();
  for (const std::string& subject : options_.subjects) choices_.push_back(choices_for(subject));
  for (std::size_t s = 0; s < options_.subjects.size() && !interrupted_by(); ++s)
    if (is_foreign_code(options_.subjects[s])) probe(s);
  if (std::none_of(choices_.begin(), choices_.end(),
                   [](const fuzz::Choices& c) { return offers_any(c.offers); }))
    return;  // nothing is left that does not kill or hang a rank
  std::size_t size = kFirstBatch;
  while (!is_over()) {
    const double start = now_s();
    auto items = draw_batch(size);
    verify_items(items);
    const double rate = static_cast<double>(size) / std::max(now_s() - start, 1e-3);
    for (const auto& item : items) note(*item);
    listener_.on_progress(tally_, failures_.size());
    size = std::clamp(static_cast<std::size_t>(rate * kBatchSeconds), kFirstBatch, kLargestBatch);
  }
}

fuzz::Choices Fuzzer::choices_for(const std::string& subject) {
  fuzz::Choices choices = options_.choices;
  choices.offers = fuzz::offers_of(subject);
  const auto rows = library_rows();
  choices.invariant = std::any_of(rows.begin(), rows.end(), [&](const LibraryRow& row) {
    return row.subject == subject && row.kind == CollectiveKind::kCopy;
  });
  for (const CollectiveTraits& kind : kCollectives) {
    const bool wanted =
        options_.kinds.empty() ||
        std::find(options_.kinds.begin(), options_.kinds.end(), kind.kind) != options_.kinds.end();
    if (!wanted) choices.offers[static_cast<std::size_t>(kind.kind)].ops = {};
  }
  if (!offers_any(choices.offers))
    throw UserError(
        fmt::format("fuzz: {} offers none of the collectives that are asked for", subject));
  return choices;
}

std::unique_ptr<Fuzzer::Item> Fuzzer::make_item(nlohmann::ordered_json document,
                                                const std::string& subject,
                                                std::uint64_t index) const {
  auto item = std::make_unique<Item>();
  item->index = index;
  item->subject = subject;
  item->document = std::move(document);
  return item;
}

std::vector<std::unique_ptr<Fuzzer::Item>> Fuzzer::draw_batch(std::size_t size) {
  std::vector<std::unique_ptr<Item>> items;
  std::uint64_t end = next_ + std::max<std::size_t>(1, size / options_.subjects.size());
  if (options_.count) end = std::min(end, options_.first + *options_.count);
  for (; next_ < end; ++next_)
    for (std::size_t s = 0; s < options_.subjects.size(); ++s)
      if (offers_any(choices_[s].offers))
        items.push_back(make_item(fuzz::draw_program(choices_[s], options_.seed, next_),
                                  options_.subjects[s], next_));
  return items;
}

void Fuzzer::verify_items(std::vector<std::unique_ptr<Item>>& items) {
  std::vector<Case> cases;
  for (std::size_t i = 0; i < items.size(); ++i) {
    Item& item = *items[i];
    try {
      item.scenario = std::make_unique<Scenario>(
          parse_scenario(item.document.dump(), fmt::format("program {}", i)));
    } catch (const InvalidScenario& e) {
      item.invalid = e.what();
      continue;
    }
    Overrides overrides;
    overrides.subjects = {item.subject};
    overrides.timeout_s = options_.timeout_s;
    if (!options_.python.empty()) overrides.pythons = {options_.python};
    item.which = expand(*item.scenario, overrides, kTorchVersion).at(0);
    cases.push_back(*item.which);
  }
  if (cases.empty()) return;
  if (!verifier_) {
    std::vector<Case> all;  // for the interpreters of every subject
    for (const std::string& subject : options_.subjects) {
      all.push_back(cases.front());
      all.back().subject = subject;
    }
    verifier_ = std::make_unique<Verifier>(
        all, VerifyOptions{
                 .interpreters = &interpreters_, .every_objective = false, .bounds_for_all = true});
  }
  Outcomes outcomes(items);
  verifier_->verify(cases, outcomes);
}

// Probes what code offers, which only its ranks know: the smallest program of every kind and op,
// then one with each option. What they skip, or raise at, is not drawn; otherwise most programs
// would be skipped.
void Fuzzer::probe(std::size_t s) {
  const std::string& subject = options_.subjects[s];
  const auto probes = fuzz::probes(choices_[s].offers);
  std::vector<std::unique_ptr<Item>> items;
  for (const fuzz::Probe& probe : probes) {
    items.push_back(make_item(probe.program, subject, options_.first));
    items.back()->is_probe = true;
  }
  verify_items(items);
  std::string why;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto& result = items[i]->result;
    if (!result || (result->verdict != Verdict::kSkipped && !result->error)) continue;
    fuzz::Offers& offers = choices_[s].offers;
    const bool known = !offers[static_cast<std::size_t>(probes[i].kind)].any();  // not drawn at all
    fuzz::take_out(offers, probes[i]);
    if (why.empty()) why = result->error ? result->error->message : result->why;
    // Raising counts as refusing. What kills or hangs a rank is a failure, and reported here, since
    // each costs a team of ranks.
    if (!result->error) continue;
    if (result->error->kind == ErrorKind::kException && known) continue;
    if (result->error->kind == ErrorKind::kException)
      tally_.not_drawn[{subject, result->error->message}].push_back(text_of(probes[i]));
    else
      note(*items[i]);
  }
  const bool found = std::any_of(failures_.begin(), failures_.end(),
                                 [&](const auto& f) { return f.first.subject == subject; });
  if (offers_any(choices_[s].offers) || found || interrupted_by()) return;
  throw UserError(fmt::format(
      "fuzz: {0} runs none of the collectives that are asked for{1}{2}; `distgrad audit {0}` tells "
      "more",
      subject, why.empty() ? "" : ": ", first_line(why)));
}

void Fuzzer::note(const Item& item) {
  if (!item.result && item.invalid.empty()) return;  // interrupted before its turn
  ++tally_.programs;
  if (!item.is_probe) tally_.drawn = std::max(tally_.drawn, item.index - options_.first + 1);
  if (!item.has_failed()) {
    const CaseResult& result = *item.result;
    if (result.verdict == Verdict::kMatch) ++tally_.matches;
    if (result.verdict == Verdict::kDisputed) ++tally_.disputed;
    if (result.verdict != Verdict::kSkipped) return;
    ++tally_.skipped;
    ++tally_.why_skipped[result.why];
    return;
  }
  const bool is_broken = !item.invalid.empty() || item.result->verdict == Verdict::kError;
  ++(is_broken ? tally_.broken : tally_.mismatches);
  const FuzzKey key = item.key();
  const auto [place, is_new] = failures_.try_emplace(key);
  FuzzFailure& failure = place->second;
  if (!is_new) {
    ++failure.count;
    return;
  }
  failure.key = key;
  failure.index = item.index;
  failure.is_broken = is_broken;
  failure.is_probe = item.is_probe;
  failure.text = item.text();
  failure.scenario = item.document;
  if (item.scenario && !interrupted_by()) shrink_failure(item, failure);
  write_note(item, failure);
  listener_.on_failure(failure);
}

void Fuzzer::shrink_failure(const Item& item, FuzzFailure& failure) {
  std::map<nlohmann::ordered_json, std::string> texts;  // of smaller programs that show it, too
  const StillShows still_shows = [&](const std::vector<nlohmann::ordered_json>& documents) {
    std::vector<std::unique_ptr<Item>> items;
    for (const auto& document : documents)
      items.push_back(make_item(document, item.subject, item.index));
    verify_items(items);
    std::vector<bool> shown;
    for (std::size_t i = 0; i < items.size(); ++i) {
      shown.push_back(items[i]->has_failed() && items[i]->key() == failure.key);
      if (shown.back()) texts[documents[i]] = items[i]->text();
    }
    return shown;
  };
  ShrinkOptions how;
  const double end = now_s() + kBrokenSeconds;
  if (failure.is_broken) how.batch = kBatchBroken;
  how.most_tried = failure.is_broken ? kMostTriedBroken : kMostTried;
  how.is_interrupted = [&] { return interrupted_by() || (failure.is_broken && now_s() > end); };
  Shrunk shrunk = shrink(item.document, still_shows, how);
  failure.shrinks = shrunk.reductions.size();
  failure.is_minimal = shrunk.is_minimal;
  if (const auto text = texts.find(shrunk.document); text != texts.end())
    failure.text = text->second;
  failure.scenario = std::move(shrunk.document);
}

// Adds what a reader of the file wants first, and what lets `distgrad run` show it again.
void Fuzzer::write_note(const Item& item, FuzzFailure& failure) const {
  nlohmann::ordered_json noted;
  noted["note"] =
      item.is_probe
          ? fmt::format("found by distgrad fuzz {}, asking what the subject offers", kVersion)
          : fmt::format("found by distgrad fuzz {} --seed {}, program {}", kVersion, options_.seed,
                        item.index);
  for (auto& [name, value] : failure.scenario.items()) noted[name] = std::move(value);
  noted["subjects"][item.subject] = "match";
  if (failure.key.rule == name_of(ErrorKind::kHang)) noted["timeout_s"] = options_.timeout_s;
  failure.scenario = std::move(noted);
}

}  // namespace distgrad
