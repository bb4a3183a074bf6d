/* Functions for text in UTF-8 (RFC 3629). */
#ifndef KVD_COMMON_UTF8_H
#define KVD_COMMON_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the index of the first malformed byte of s [len], or len. */
size_t kvd_utf8_first_bad(const char *s, size_t len);

/* Returns the index of the first control character of s, or the length of s if it has none. Control
 * characters are below U+0020, or from U+007F to U+009F. */
size_t kvd_utf8_first_control(const char *s);

/* Replaces control characters and malformed bytes, which could control a terminal, by '?'. */
void kvd_utf8_make_printable(char *s);

/* Removes an incomplete character from the end of s, which was cut to fit into a buffer. */
void kvd_utf8_drop_cut(char *s);

/* Returns 3 if s [len] begins with a byte order mark, else 0. */
size_t kvd_utf8_mark(const char *s, size_t len);

/* Returns how many bytes a character with the first byte `lead` has. The text must be valid. */
unsigned kvd_utf8_width(char lead);

/* Returns the code point of the first character of s. *width receives its number of bytes. */
uint32_t kvd_utf8_decode(const char *s, unsigned *width);

/* Writes a code point as 1 to 4 bytes and returns their number. */
unsigned kvd_utf8_encode(uint32_t code_point, char out[4]);

/* Returns the index of the first byte of the character before s[end]. */
size_t kvd_utf8_before(const char *s, size_t end);

/* Returns true if the code point has the Unicode property White_Space. */
bool kvd_utf8_is_space(uint32_t code_point);

/* Returns the number of bytes at s that form one malformed sequence, at least 1. */
size_t kvd_utf8_bad_width(const char *s, size_t len);

#endif
