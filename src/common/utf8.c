#include "common/utf8.h"

#include <string.h>

unsigned kvd_utf8_width(char lead)
{
    const unsigned char c = (unsigned char)lead;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* Returns the length in bytes of the UTF-8 character at s, or 0 if it is malformed. For a malformed
 * character, *prefix receives the number of bytes before the first wrong byte, at least 1. */
static size_t one_character(const unsigned char *s, size_t len, size_t *prefix)
{
    unsigned char low = 0x80, high = 0xbf;
    size_t width;
    *prefix = 1;
    if (s[0] < 0x80)
        return 1;
    if (s[0] >= 0xc2 && s[0] <= 0xdf) {
        width = 2;
    } else if (s[0] >= 0xe0 && s[0] <= 0xef) {
        width = 3;
        low = s[0] == 0xe0 ? 0xa0 : 0x80;
        high = s[0] == 0xed ? 0x9f : 0xbf;
    } else if (s[0] >= 0xf0 && s[0] <= 0xf4) {
        width = 4;
        low = s[0] == 0xf0 ? 0x90 : 0x80;
        high = s[0] == 0xf4 ? 0x8f : 0xbf;
    } else {
        return 0;
    }
    for (size_t i = 1; i < width; i++) {
        if (i >= len || s[i] < low || s[i] > high)
            return 0;
        *prefix = i + 1;
        low = 0x80;
        high = 0xbf;
    }
    return width;
}

size_t kvd_utf8_first_bad(const char *s, size_t len)
{
    size_t i = 0;
    while (i < len) {
        uint64_t eight;
        while (len - i >= sizeof eight) {
            memcpy(&eight, s + i, sizeof eight);
            if (eight & 0x8080808080808080u)
                break;
            i += sizeof eight;
        }
        if (i == len)
            break;
        size_t prefix;
        const size_t width = one_character((const unsigned char *)s + i, len - i, &prefix);
        if (!width)
            return i;
        i += width;
    }
    return len;
}

/* Returns true if a control character begins at s. */
static bool is_control(const char *s)
{
    const unsigned char c = (unsigned char)s[0], next = c == 0xc2 ? (unsigned char)s[1] : 0;
    return (c > 0 && c < 0x20) || c == 0x7f || (next >= 0x80 && next <= 0x9f);
}

size_t kvd_utf8_first_control(const char *s)
{
    size_t i = 0;
    while (s[i] && !is_control(s + i))
        i++;
    return i;
}

void kvd_utf8_make_printable(char *s)
{
    size_t prefix, left = strlen(s);
    while (left > 0) {
        const size_t width = one_character((const unsigned char *)s, left, &prefix);
        const size_t n = width ? width : 1;
        if (!width || is_control(s))
            memset(s, '?', n);
        s += n;
        left -= n;
    }
}

void kvd_utf8_drop_cut(char *s)
{
    const size_t len = strlen(s), bad = kvd_utf8_first_bad(s, len);
    if (bad < len && kvd_utf8_bad_width(s + bad, len - bad) == len - bad)
        s[bad] = '\0';
}

size_t kvd_utf8_bad_width(const char *s, size_t len)
{
    size_t prefix;
    (void)one_character((const unsigned char *)s, len, &prefix);
    return prefix;
}

uint32_t kvd_utf8_decode(const char *s, unsigned *width)
{
    const unsigned char *u = (const unsigned char *)s;
    *width = kvd_utf8_width(s[0]);
    switch (*width) {
    case 1:
        return u[0];
    case 2:
        return (u[0] & 0x1fu) << 6 | (u[1] & 0x3fu);
    case 3:
        return (u[0] & 0x0fu) << 12 | (u[1] & 0x3fu) << 6 | (u[2] & 0x3fu);
    default:
        return (u[0] & 0x07u) << 18 | (u[1] & 0x3fu) << 12 | (u[2] & 0x3fu) << 6 | (u[3] & 0x3fu);
    }
}

unsigned kvd_utf8_encode(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        out[0] = (char)(0xc0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3f));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xe0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3f));
        out[2] = (char)(0x80 | (c & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3f));
    out[2] = (char)(0x80 | (c >> 6 & 0x3f));
    out[3] = (char)(0x80 | (c & 0x3f));
    return 4;
}

size_t kvd_utf8_before(const char *s, size_t end)
{
    do
        end--;
    while (end > 0 && ((unsigned char)s[end] & 0xc0) == 0x80);
    return end;
}

bool kvd_utf8_is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

size_t kvd_utf8_mark(const char *s, size_t len)
{
    return len >= 3 && !memcmp(s, "\xef\xbb\xbf", 3) ? 3 : 0;
}
