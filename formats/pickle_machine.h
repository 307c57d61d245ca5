// Reads a pickle into plain values. A pickle is a program for a stack machine; this one knows the
// instructions of all protocols (https://docs.python.org/3/library/pickletools.html) and calls
// nothing: a table of constructors is given its meaning (pickle_constructors.h), every other class
// or function is remembered by its name. Sizes and counts are bounded, so that a hostile pickle
// costs no more than a large one.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "zero3d/formats/pickle_value.h"

namespace zero3d {

struct PickleLimits {
  std::size_t values = 4'000'000;  ///< That take memory of their own.
  std::size_t work = 256'000'000;  ///< Items and bytes copied by instructions.
  std::size_t nesting = 10'000;    ///< Of open collections.
};

class PickleMachine {
 public:
  /// `source` names what the text is from, in messages.
  explicit PickleMachine(std::string source, PickleLimits limits = {});

  /// Runs the pickle at the front of `text`, to its end; consumed() tells where that is. Throws
  /// IoError(source) for a damaged pickle, an instruction that has no place here and what is larger
  /// than the limits.
  PickleTree run(std::string_view text);
  std::size_t consumed() const { return at_; }

 private:
  friend class PickleConstructors;
  using Ref = std::uint32_t;
  static constexpr Ref kNone = 0, kFalse = 1, kTrue = 2, kEmptyTuple = 3;

  [[noreturn]] void fail(std::string_view what) const;
  void charge(std::size_t work);
  Ref add(PickleNode node);
  Ref add_text(PickleKind kind, std::string_view text);
  PickleNode& node(Ref ref) { return tree_.nodes_[ref]; }

  std::string_view take(std::uint64_t bytes);
  std::string_view take_line();
  template <typename T>
  T take_number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }

  void push(Ref ref) { stack_.push_back(ref); }
  Ref pop();
  Ref top() const;
  /// What lies above the last mark, which goes; valid until the next push.
  std::vector<Ref> pop_to_mark();

  void step(unsigned char instruction);
  bool step_value(unsigned char instruction);
  bool step_text(unsigned char instruction);
  bool step_collection(unsigned char instruction);
  bool step_memo(unsigned char instruction);
  bool step_object(unsigned char instruction);

  void push_integer(std::int64_t value);
  void push_long(std::string_view bytes);
  void push_decimal(std::string_view line);
  void push_float(double value);
  void push_list(std::vector<Ref> items);
  void push_tuple(std::size_t count);
  void append(const std::vector<Ref>& items);
  void set_items(const std::vector<Ref>& items);
  void push_dict(std::vector<Ref> items);
  void remember(std::uint64_t key);
  void recall(std::uint64_t key);
  void push_global(std::string_view module, std::string_view name);
  void push_call(Ref callee, Ref arguments);
  void build();

  std::string source_;
  PickleLimits limits_;
  PickleTree tree_;
  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t work_ = 0;
  std::vector<Ref> stack_;
  std::vector<std::size_t> marks_;
  std::vector<Ref> memo_;  ///< kUnset where nothing was kept.
  std::uint64_t kept_ = 0;
};

}  // namespace zero3d
