// What a file that is to hold raw tokens looks like when it holds something else: judged by its
// first bytes, which no tokenizer's output would have by chance. Internal to formats.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "zero3d/formats/input_file.h"

namespace zero3d {

/// The first bytes of the file, as many as the rules below look at.
std::string probe(const InputFile& file);

/// UTF-8 without zero bytes; a sequence cut off at the end passes.
bool looks_like_text(std::string_view bytes);
/// NumPy's magic.
bool is_npy(std::string_view bytes);

/// What a pointer of git-lfs, a compressed file or an archive is, and what to do about it: "a
/// gzip-compressed file; decompress it first"; "" for anything else.
std::string container_of(std::string_view bytes);
/// The same of anything that says by itself what it is: NumPy's files, containers, text.
std::string other_format(std::string_view bytes);
/// Whether a text begins as JSON does.
bool looks_like_json(std::string_view bytes);
/// The same of a file given as text; one that starts like a compressed file and is text all the
/// same is text.
std::string no_text(std::string_view bytes);
/// The same of a file that is called text and has bytes that no text has.
std::string binary_data(std::string_view bytes);
/// Whether no byte of the file is other than zero; false of a few bytes.
bool is_all_zero(const InputFile& file);
/// The same for what is no sequence of raw tokens of `width` bytes (2 or 4): containers, text, JSON
/// lines, and tokens of another width.
std::string no_raw_tokens(std::string_view bytes, std::size_t width);

}  // namespace zero3d
