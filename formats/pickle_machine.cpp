#include "zero3d/formats/pickle_machine.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "zero3d/core/error.h"
#include "zero3d/core/text.h"
#include "zero3d/formats/pickle_constructors.h"

namespace zero3d {
namespace {

constexpr std::uint32_t kUnset = std::numeric_limits<std::uint32_t>::max();

}  // namespace

PickleMachine::PickleMachine(std::string source, PickleLimits limits)
    : source_(std::move(source)), limits_(limits) {}

PickleTree PickleMachine::run(std::string_view text) {
  text_ = text;
  at_ = work_ = 0;
  kept_ = 0;
  tree_ = {};
  stack_.clear();
  marks_.clear();
  memo_.clear();
  for (const PickleKind kind :
       {PickleKind::none, PickleKind::boolean, PickleKind::boolean, PickleKind::list}) {
    PickleNode node;
    node.kind = kind;
    node.integer = tree_.nodes_.size() == kTrue ? 1 : 0;
    tree_.nodes_.push_back(std::move(node));
  }
  for (;;) {
    const auto instruction = static_cast<unsigned char>(take(1)[0]);
    if (instruction == '.') break;
    step(instruction);
  }
  tree_.root_ = pop();
  return std::exchange(tree_, {});
}

void PickleMachine::fail(std::string_view what) const {
  throw IoError(source_, 0,
                concat("damaged pickle: at byte ", at_, " of ", text_.size(), ", ", what));
}

void PickleMachine::charge(std::size_t work) {
  if (work > limits_.work - work_) fail(concat("more than ", limits_.work, " items are copied"));
  work_ += work;
}

PickleMachine::Ref PickleMachine::add(PickleNode node) {
  if (tree_.nodes_.size() >= limits_.values)
    fail(concat("it holds more than ", limits_.values, " values"));
  tree_.nodes_.push_back(std::move(node));
  return static_cast<Ref>(tree_.nodes_.size() - 1);
}

PickleMachine::Ref PickleMachine::add_text(PickleKind kind, std::string_view text) {
  PickleNode node;
  node.kind = kind;
  node.text = text;
  return add(std::move(node));
}

std::string_view PickleMachine::take(std::uint64_t bytes) {
  if (bytes > text_.size() - at_)
    fail(concat("it ends where ", bytes, " bytes more are expected (", text_.size() - at_,
                " are left)"));
  const std::string_view taken = text_.substr(at_, static_cast<std::size_t>(bytes));
  at_ += taken.size();
  return taken;
}

std::string_view PickleMachine::take_line() {
  const std::size_t end = text_.find('\n', at_);
  if (end == std::string_view::npos) fail("it ends within a line");
  const std::string_view line = text_.substr(at_, end - at_);
  at_ = end + 1;
  return line;
}

PickleMachine::Ref PickleMachine::pop() {
  const Ref ref = top();
  stack_.pop_back();
  return ref;
}

PickleMachine::Ref PickleMachine::top() const {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back()))
    fail("an instruction asks for more values than there are");
  return stack_.back();
}

std::vector<PickleMachine::Ref> PickleMachine::pop_to_mark() {
  if (marks_.empty()) fail("an instruction asks for a mark that is not there");
  const std::size_t begin = marks_.back();
  marks_.pop_back();
  std::vector<Ref> items(stack_.begin() + static_cast<std::ptrdiff_t>(begin), stack_.end());
  stack_.resize(begin);
  return items;
}

void PickleMachine::push_integer(std::int64_t value) {
  PickleNode node;
  node.kind = PickleKind::integer;
  node.integer = value;
  push(add(std::move(node)));
}

void PickleMachine::push_long(std::string_view bytes) {
  if (bytes.size() > 8) {  // a seed or a counter that no field of ours holds
    push(add_text(PickleKind::bytes, bytes));
    return;
  }
  std::uint64_t value = !bytes.empty() && (bytes.back() & 0x80) != 0 ? ~std::uint64_t{0} : 0;
  for (std::size_t i = bytes.size(); i-- > 0;)
    value = (value << 8) | static_cast<unsigned char>(bytes[i]);
  push_integer(static_cast<std::int64_t>(value));
}

void PickleMachine::push_decimal(std::string_view line) {
  if (line == "00" || line == "01") return push(line == "01" ? kTrue : kFalse);
  if (line.ends_with('L')) line.remove_suffix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (end != line.data() + line.size() || line.empty() || error == std::errc::invalid_argument)
    fail("no number on its line");
  if (error != std::errc()) return push(add_text(PickleKind::bytes, line));
  push_integer(value);
}

void PickleMachine::push_float(double value) {
  PickleNode node;
  node.kind = PickleKind::number;
  node.number = value;
  push(add(std::move(node)));
}

void PickleMachine::push_list(std::vector<Ref> items) {
  PickleNode node;
  node.kind = PickleKind::list;
  node.items = std::move(items);
  push(add(std::move(node)));
}

void PickleMachine::push_tuple(std::size_t count) {
  std::vector<Ref> items(count);
  for (std::size_t i = count; i-- > 0;) items[i] = pop();
  push_list(std::move(items));
}

void PickleMachine::append(const std::vector<Ref>& items) {
  const Ref list = top();
  PickleNode& target = node(list);
  if (target.kind == PickleKind::object) return;  // a list's subclass: its elements mean nothing
  if (target.kind != PickleKind::list || list == kEmptyTuple) fail("elements of what is no list");
  target.items.insert(target.items.end(), items.begin(), items.end());
}

void PickleMachine::set_items(const std::vector<Ref>& items) {
  PickleNode& target = node(top());
  if (items.size() % 2 != 0) fail("a key without a value");
  if (target.kind != PickleKind::dict && target.kind != PickleKind::object)
    fail("entries of what is no dict");
  target.items.insert(target.items.end(), items.begin(), items.end());
}

void PickleMachine::push_dict(std::vector<Ref> items) {
  if (items.size() % 2 != 0) fail("a key without a value");
  PickleNode node;
  node.kind = PickleKind::dict;
  node.items = std::move(items);
  push(add(std::move(node)));
}

void PickleMachine::remember(std::uint64_t key) {
  if (key >= 2 * limits_.values) fail(concat("a memo of number ", key, " is beyond the limits"));
  if (memo_.size() <= key) memo_.resize(std::max<std::size_t>(key + 1, 2 * memo_.size()), kUnset);
  kept_ += memo_[key] == kUnset ? 1u : 0u;
  memo_[key] = top();
}

void PickleMachine::recall(std::uint64_t key) {
  if (key >= memo_.size() || memo_[key] == kUnset)
    fail(concat("it refers to a value (", key, ") that it did not keep"));
  push(memo_[key]);
}

void PickleMachine::push_global(std::string_view module, std::string_view name) {
  charge(module.size() + name.size());
  push(add_text(PickleKind::global, concat(module, '.', name)));
}

void PickleMachine::push_call(Ref callee, Ref arguments) {
  push(PickleConstructors(*this).call(callee, arguments));
}

void PickleMachine::build() {
  const Ref state = pop();
  PickleNode& target = node(top());
  switch (target.kind) {
    case PickleKind::object: {
      // (attributes, those of __slots__), one of which is there
      const PickleNode& given = node(state);
      const bool pair = given.kind == PickleKind::list && given.items.size() == 2;
      target.state =
          pair ? given.items[node(given.items[0]).kind == PickleKind::dict ? 0 : 1] : state;
      return;
    }
    case PickleKind::dict:    // attributes beside the entries: _metadata of a module's state
    case PickleKind::tensor:  // and of a tensor
    case PickleKind::list:
    case PickleKind::number:
    case PickleKind::none:
      return;
    default:
      fail("a state for what has none");
  }
}

}  // namespace zero3d
