/* The alphabet of byte-level BPE: each byte as one printable character (GPT-2). */
#ifndef KVD_MODEL_TOKENIZER_BYTE_LEVEL_H
#define KVD_MODEL_TOKENIZER_BYTE_LEVEL_H

#include <stdint.h>

/* Printable bytes are themselves, the others follow from U+0100 on, in order. */
uint32_t kvd_byte_to_char(unsigned char byte);

/* The byte of a character, or -1. */
int kvd_char_to_byte(uint32_t code_point);

#endif
