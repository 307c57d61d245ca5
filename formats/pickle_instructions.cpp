// The instructions of the pickle machine, by the letters and numbers that pickletools lists.
#include <bit>
#include <charconv>

#include "zero3d/core/text.h"
#include "zero3d/formats/pickle_constructors.h"
#include "zero3d/formats/pickle_machine.h"

namespace zero3d {
namespace {

constexpr int kNewestProtocol = 5;

}  // namespace

void PickleMachine::step(unsigned char instruction) {
  if (step_value(instruction) || step_text(instruction) || step_collection(instruction) ||
      step_memo(instruction) || step_object(instruction))
    return;
  switch (instruction) {
    case 0x80:  // PROTO
      if (const auto protocol = take_number<std::uint8_t>(); protocol > kNewestProtocol)
        fail(concat("protocol ", static_cast<int>(protocol), "; at most ", kNewestProtocol,
                    " is read"));
      return;
    case 0x95:  // FRAME
      if (take_number<std::uint64_t>() > text_.size() - at_) fail("a frame reaches past its end");
      return;
    case '(':  // MARK
      if (marks_.size() >= limits_.nesting)
        fail(concat("collections are nested deeper than ", limits_.nesting));
      marks_.push_back(stack_.size());
      return;
    case '0':  // POP
      if (!marks_.empty() && marks_.back() == stack_.size())
        marks_.pop_back();
      else
        pop();
      return;
    case '1':  // POP_MARK
      pop_to_mark();
      return;
    case '2':  // DUP
      return push(top());
    default:
      fail(concat("the instruction ", static_cast<int>(instruction),
                  " has no place in a file of tensors"));
  }
}

bool PickleMachine::step_value(unsigned char instruction) {
  switch (instruction) {
    case 'N':
      push(kNone);
      return true;
    case 0x88:
      push(kTrue);
      return true;
    case 0x89:
      push(kFalse);
      return true;
    case 'J':
      push_integer(take_number<std::int32_t>());
      return true;
    case 'K':
      push_integer(take_number<std::uint8_t>());
      return true;
    case 'M':
      push_integer(take_number<std::uint16_t>());
      return true;
    case 'I':
    case 'L':
      push_decimal(take_line());
      return true;
    case 0x8a:
      push_long(take(take_number<std::uint8_t>()));
      return true;
    case 0x8b: {
      const auto bytes = take_number<std::int32_t>();
      if (bytes < 0) fail("an integer of a negative number of bytes");
      push_long(take(static_cast<std::uint64_t>(bytes)));
      return true;
    }
    case 'G': {
      auto bits = take_number<std::uint64_t>();
      std::uint64_t value = 0;
      for (int i = 0; i < 8; ++i, bits >>= 8) value = (value << 8) | (bits & 0xffu);
      push_float(std::bit_cast<double>(value));
      return true;
    }
    case 'F': {
      const std::string_view line = take_line();
      double value = 0;
      const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
      if (error != std::errc() || end != line.data() + line.size()) fail("no number on its line");
      push_float(value);
      return true;
    }
    default:
      return false;
  }
}

bool PickleMachine::step_text(unsigned char instruction) {
  const auto text = [&](PickleKind kind, std::string_view value) {
    push(add_text(kind, value));
    return true;
  };
  switch (instruction) {
    case 'X':
      return text(PickleKind::text, take(take_number<std::uint32_t>()));
    case 0x8c:
      return text(PickleKind::text, take(take_number<std::uint8_t>()));
    case 0x8d:
      return text(PickleKind::text, take(take_number<std::uint64_t>()));
    case 'V':
      return text(PickleKind::text, take_line());
    case 'S': {
      std::string_view line = take_line();
      if (line.size() < 2 || (line.front() != '\'' && line.front() != '"') ||
          line.back() != line.front())
        fail("a text without its quotes");
      return text(PickleKind::text, line.substr(1, line.size() - 2));
    }
    case 'T': {
      const auto bytes = take_number<std::int32_t>();
      if (bytes < 0) fail("a text of a negative number of bytes");
      return text(PickleKind::text, take(static_cast<std::uint64_t>(bytes)));
    }
    case 'U':
      return text(PickleKind::text, take(take_number<std::uint8_t>()));
    case 'B':
      return text(PickleKind::bytes, take(take_number<std::uint32_t>()));
    case 'C':
      return text(PickleKind::bytes, take(take_number<std::uint8_t>()));
    case 0x8e:
    case 0x96:
      return text(PickleKind::bytes, take(take_number<std::uint64_t>()));
    default:
      return false;
  }
}

bool PickleMachine::step_collection(unsigned char instruction) {
  switch (instruction) {
    case ']':   // EMPTY_LIST
    case 0x8f:  // EMPTY_SET
      push_list({});
      return true;
    case 'l':   // LIST
    case 't':   // TUPLE
    case 0x91:  // FROZENSET
      push_list(pop_to_mark());
      return true;
    case ')':
      push(kEmptyTuple);
      return true;
    case 0x85:
    case 0x86:
    case 0x87:
      push_tuple(instruction - 0x84u);
      return true;
    case 'a':
      append({pop()});
      return true;
    case 'e':   // APPENDS
    case 0x90:  // ADDITEMS
      append(pop_to_mark());
      return true;
    case '}':
      push_dict({});
      return true;
    case 'd':
      push_dict(pop_to_mark());
      return true;
    case 's': {
      const Ref value = pop(), key = pop();
      set_items({key, value});
      return true;
    }
    case 'u':
      set_items(pop_to_mark());
      return true;
    default:
      return false;
  }
}

bool PickleMachine::step_memo(unsigned char instruction) {
  const auto number_on_line = [&] {
    const std::string_view line = take_line();
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
    if (error != std::errc() || end != line.data() + line.size()) fail("no number on its line");
    return value;
  };
  switch (instruction) {
    case 'q':
      remember(take_number<std::uint8_t>());
      return true;
    case 'r':
      remember(take_number<std::uint32_t>());
      return true;
    case 'p':
      remember(number_on_line());
      return true;
    case 0x94:  // MEMOIZE
      remember(kept_);
      return true;
    case 'h':
      recall(take_number<std::uint8_t>());
      return true;
    case 'j':
      recall(take_number<std::uint32_t>());
      return true;
    case 'g':
      recall(number_on_line());
      return true;
    default:
      return false;
  }
}

bool PickleMachine::step_object(unsigned char instruction) {
  switch (instruction) {
    case 'c': {
      const std::string_view module = take_line();
      push_global(module, take_line());
      return true;
    }
    case 0x93: {  // STACK_GLOBAL
      const Ref name = pop(), module = pop();
      if (node(name).kind != PickleKind::text || node(module).kind != PickleKind::text)
        fail("a class whose name is no text");
      const std::string module_text = node(module).text, name_text = node(name).text;
      push_global(module_text, name_text);
      return true;
    }
    case 'R':     // REDUCE
    case 0x81: {  // NEWOBJ
      const Ref arguments = pop();
      push_call(pop(), arguments);
      return true;
    }
    case 0x92: {  // NEWOBJ_EX: arguments by name are not looked at
      pop();
      const Ref arguments = pop();
      push_call(pop(), arguments);
      return true;
    }
    case 'i': {  // INST
      const std::string_view module = take_line(), name = take_line();
      push_list(pop_to_mark());
      const Ref arguments = pop();
      push_global(module, name);
      push_call(pop(), arguments);
      return true;
    }
    case 'o': {  // OBJ
      std::vector<Ref> items = pop_to_mark();
      if (items.empty()) fail("an object without a class");
      const Ref callee = items.front();
      items.erase(items.begin());
      push_list(std::move(items));
      push_call(callee, pop());
      return true;
    }
    case 'Q':  // BINPERSID
      push(PickleConstructors(*this).load_persistent(pop()));
      return true;
    case 'b':
      build();
      return true;
    default:
      return false;
  }
}

}  // namespace zero3d
