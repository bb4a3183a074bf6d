/*
 * Checks, decodes and encodes UTF-8 (RFC 3629: no surrogates, no overlong forms, nothing above
 * U+10FFFF).
 */
#ifndef KVD_COMMON_UTF8_H
#define KVD_COMMON_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the index of the first byte of s [len] that is not part of well-formed UTF-8, or len. */
size_t kvd_utf8_first_bad(const char *s, size_t len);

/* Returns the number of bytes of the character that starts with this lead byte of valid UTF-8. */
unsigned kvd_utf8_width(char lead);

/* Returns the code point at s, which is valid UTF-8; *width receives its number of bytes. */
uint32_t kvd_utf8_decode(const char *s, unsigned *width);

/* Writes a code point as UTF-8 and returns its number of bytes (1 to 4). */
unsigned kvd_utf8_encode(uint32_t code_point, char out[4]);

/*
 * Returns the index of the first byte of the last character before s[end]. `end` must be above 0,
 * and s valid UTF-8.
 */
size_t kvd_utf8_before(const char *s, size_t end);

/* Returns true for Unicode code points with the property White_Space. */
bool kvd_utf8_is_space(uint32_t code_point);

/*
 * Returns the length of the ill-formed UTF-8 sequence at s that a decoder replaces by one U+FFFD:
 * the longest prefix of a well-formed character, at least one byte.
 */
size_t kvd_utf8_bad_width(const char *s, size_t len);

#endif
