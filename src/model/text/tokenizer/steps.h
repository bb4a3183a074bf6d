/*
 * Declares the steps of a tokenizer.json in the order in which a text passes them: normalizer,
 * added tokens, pre-tokenizer, byte-pair encoding, post-processor. After these come the decoder,
 * which turns tokens back into text, the tokenizer of llama2.c, the tokenizer of GGUF files, and
 * the merging of symbols that byte-pair encoding uses.
 */
#ifndef KVD_MODEL_TEXT_TOKENIZER_STEPS_H
#define KVD_MODEL_TEXT_TOKENIZER_STEPS_H

#include <jansson.h>

#include "model/checkpoint/gguf.h"
#include "model/text/tokenizer.h"
#include "model/text/tokenizer/pieces.h"

/*
 * Vocabulary of a tokenizer: table of pieces (the strings of tokens) and their ids, searched by
 * piece or by id. Ids may have gaps; memory is proportional to the number of pieces.
 */

typedef struct {
    size_t begin; /* offset of the piece in kvd_vocab.text */
    uint32_t len, id;
} kvd_vocab_entry;

typedef struct {
    kvd_buffer text;
    kvd_vocab_entry *entry; /* n entries, sorted by id after kvd_vocab_build */
    size_t n, capacity;
    /* Hash table for the search by piece: index + 1 of an element of `entry`, or 0 if unused. */
    uint32_t *slot;
    size_t n_slots; /* number of slots of the hash table, a power of two */
    size_t longest; /* length of the longest piece in bytes */
} kvd_vocab;

/*
 * kvd_vocab_add appends one piece (the string of a token) with its id. kvd_vocab_build then builds
 * the tables, and fails if a piece or an id occurs twice.
 */
int kvd_vocab_add(kvd_vocab *v, const char *piece, size_t len, uint32_t id, kvd_err *err);
int kvd_vocab_build(kvd_vocab *v, kvd_err *err);
void kvd_vocab_release(kvd_vocab *v);

bool kvd_vocab_find(const kvd_vocab *v, const char *piece, size_t len, uint32_t *id);
/*
 * Returns the piece (string) of a token id, not zero-terminated, or NULL if the id is not in the
 * vocabulary.
 */
const char *kvd_vocab_piece(const kvd_vocab *v, uint32_t id, size_t *len);
/* Returns the largest id of the vocabulary + 1, or 0 if the vocabulary is empty. */
size_t kvd_vocab_end(const kvd_vocab *v);

/*
 * The "normalizer" of tokenizer.json, applied to the text between added tokens. Normal forms are
 * those of Unicode 9.0, as in Hugging Face tokenizers. Lowercase maps letters by the Unicode
 * version of utf8proc and fails on characters that this version lacks. Normalizers of other types
 * are refused when the file is read.
 */

typedef struct kvd_normalizer kvd_normalizer;

/*
 * Reads a normalizer from the JSON object `spec`; JSON null means no normalizer. On failure returns
 * NULL and fills *err.
 */
kvd_normalizer *kvd_normalizer_parse(const json_t *spec, kvd_err *err);
void kvd_normalizer_free(kvd_normalizer *n);

/*
 * Normalizes *text in place (it may grow and shrink); *scratch is overwritten. If `first` is not
 * NULL, *first is the number of leading bytes of *text that come from the first character of the
 * document (see kvd_piece), and is updated.
 *
 * If `open`, the document continues after *text. The result is then a prefix that the normalized
 * forms of all such documents share. Fails if the text grows to more than 64 times its size plus 64
 * KiB.
 */
int kvd_normalizer_apply(const kvd_normalizer *n, kvd_buffer *text, kvd_buffer *scratch,
                         size_t *first, bool open, kvd_err *err);

/* Normalizes the pieces of a list that are texts; pieces that are ids are not changed. */
int kvd_normalizer_apply_pieces(const kvd_normalizer *n, kvd_pieces *p, kvd_err *err);

/*
 * The "added_tokens" of tokenizer.json: strings that become one id before the BPE model sees the
 * text. If several match, the leftmost match is used, and of matches at the same position the
 * longest.
 */

typedef struct kvd_added_tokens kvd_added_tokens;

/*
 * Reads the array `spec` of added tokens, which may be NULL. Ids in the file must be the ones that
 * Hugging Face tokenizers would assign: the id in `vocab` if the string is in the vocabulary, else
 * the next free id. On failure returns NULL and fills *err.
 */
kvd_added_tokens *kvd_added_tokens_parse(const json_t *spec, const kvd_vocab *vocab,
                                         const kvd_normalizer *n, kvd_err *err);
void kvd_added_tokens_free(kvd_added_tokens *a);

/*
 * Cuts added tokens out of the pieces of text: those that are matched after the normalizer if
 * `normalized`, else those that are matched before it.
 */
int kvd_added_tokens_split(const kvd_added_tokens *a, bool normalized, kvd_pieces *p, kvd_err *err);

/*
 * Returns the text of an added token as it appears in decoded text, or NULL if the id is not an
 * added token.
 */
const char *kvd_added_tokens_text(const kvd_added_tokens *a, uint32_t id, size_t *len);

/* Returns the largest id of an added token + 1, or 0 if there are no added tokens. */
size_t kvd_added_tokens_end(const kvd_added_tokens *a);

/*
 * The "pre_tokenizer" of tokenizer.json, which cuts text into the words that the BPE model encodes.
 * Supports ByteLevel, Split, Punctuation, Metaspace, Digits, Whitespace, WhitespaceSplit and a
 * Sequence of them. Split and Digits may also follow ByteLevel; they then see the text in
 * ByteLevel's alphabet and may cut inside a character.
 */

typedef struct kvd_pretokenizer kvd_pretokenizer;

/*
 * Reads a pre-tokenizer from the JSON object `spec`; with JSON null, a whole document is one word.
 * On failure returns NULL and fills *err.
 */
kvd_pretokenizer *kvd_pretokenizer_parse(const json_t *spec, kvd_err *err);
void kvd_pretokenizer_free(kvd_pretokenizer *p);

/*
 * Returns true if ByteLevel is one of the pre-tokenizer's steps, so that the BPE model works on
 * bytes. Pieces of text keep their bytes unchanged; only the model's tables are written in
 * ByteLevel's alphabet.
 */
bool kvd_pretokenizer_byte_level(const kvd_pretokenizer *p);

int kvd_pretokenizer_apply(const kvd_pretokenizer *p, kvd_pieces *pieces, kvd_err *err);

/*
 * The "model" of tokenizer.json: byte-pair encoding (BPE). A word is split into symbols, its
 * characters (or its bytes, if byte-level); then neighbouring symbols are joined in the order of
 * the list of merges.
 */

typedef struct kvd_bpe kvd_bpe;
typedef struct kvd_bpe_work kvd_bpe_work; /* buffers and a cache of words; one per thread */

/*
 * Reads the BPE model of tokenizer.json. If `byte_level`, words are given as bytes, which the
 * vocabulary writes in the alphabet of kvd_byte_to_char. On failure returns NULL and fills *err.
 */
kvd_bpe *kvd_bpe_parse(const json_t *model, bool byte_level, kvd_err *err);
void kvd_bpe_free(kvd_bpe *m);

/* Returns the vocabulary of the BPE model, which owns the vocabulary. */
const kvd_vocab *kvd_bpe_vocab(const kvd_bpe *m);

kvd_bpe_work *kvd_bpe_work_new(const kvd_bpe *m, kvd_err *err);
void kvd_bpe_work_free(kvd_bpe_work *w);

/*
 * Appends the token ids of one word, which is valid UTF-8, or any bytes if the model is byte-level.
 * A character that is neither in the vocabulary nor covered by byte fallback becomes unk_token;
 * without an unk_token it is left out, as in Hugging Face tokenizers. If `open`, `word` is the
 * beginning of a longer word, and only ids that do not depend on the rest of the word are appended.
 */
int kvd_bpe_encode(const kvd_bpe *m, kvd_bpe_work *w, const char *word, size_t len, bool open,
                   kvd_ids *ids, kvd_err *err);

/*
 * The "post_processor" of tokenizer.json, which adds special token ids before and after the ids of
 * the text. Supports ByteLevel (which has no effect on ids), TemplateProcessing for one sequence,
 * and a Sequence of them.
 */

typedef struct {
    /* True: the ids of the text are inserted here. False: the special token `id` is inserted. */
    bool is_text;
    uint32_t id;
} kvd_template_part;

typedef struct {
    kvd_template_part *part;
    size_t n, capacity;
} kvd_template;

/*
 * Reads a post-processor from the JSON object `spec` into *t; JSON null means the ids of the text
 * alone. The caller must release t on failure too.
 */
int kvd_template_parse(const json_t *spec, kvd_template *t, kvd_err *err);
void kvd_template_release(kvd_template *t);

/*
 * Appends the ids of a text, with the special ids (such as BOS) that the template t puts before and
 * after them, to *ids. Special ids are left out unless `add_special`. If `open`, `text` holds only
 * the first ids of a longer text, so the special ids after the text are left out too.
 */
int kvd_template_apply(const kvd_template *t, const kvd_ids *text, bool open, bool add_special,
                       kvd_ids *ids, kvd_err *err);

/*
 * The "decoder" of tokenizer.json, which joins the strings of tokens, in order, into text. Supports
 * ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, and a Sequence of them.
 */

typedef struct kvd_token_decoder kvd_token_decoder;

/*
 * List of n strings, one after another: string i is text.s[end[i - 1] .. end[i]), with end[-1] = 0.
 */
typedef struct {
    kvd_buffer text;
    size_t *end;
    size_t n, capacity;
} kvd_strings;

int kvd_strings_add(kvd_strings *l, const char *s, size_t len, kvd_err *err);
void kvd_strings_release(kvd_strings *l);

/*
 * Reads a decoder from the JSON object `spec`; with JSON null, strings are joined with spaces. On
 * failure returns NULL and fills *err.
 */
kvd_token_decoder *kvd_token_decoder_parse(const json_t *spec, kvd_err *err);
void kvd_token_decoder_free(kvd_token_decoder *d);

/* Appends the decoded text of the strings to *out; the contents of `strings` are overwritten. */
int kvd_token_decoder_apply(const kvd_token_decoder *d, kvd_strings *strings, kvd_buffer *out,
                            kvd_err *err);

/*
 * The tokenizer.bin of llama2.c: uint32 length of the longest piece (string of a token), then for
 * each piece float32 score, int32 length and bytes (little-endian). Neighbouring pieces whose
 * concatenation is a piece are joined, highest score first, leftmost on ties. Each byte of a
 * character that is not a piece becomes the id 3 + byte. This holds even if the vocabulary has
 * other pieces than bytes at these ids, as a vocabulary of characters has.
 */

typedef struct kvd_llama2c kvd_llama2c;

kvd_llama2c *kvd_llama2c_tok_parse(const void *bytes, size_t len, size_t vocab_size, kvd_err *err);
void kvd_llama2c_tok_free(kvd_llama2c *t);

/*
 * Appends the token ids of a text to *ids. A text that is not empty gets a leading space. If `bos`,
 * the token with id 1 (beginning of text) comes first. As in llama2.c, it takes part in joining as
 * any other piece: if its string followed by the next piece is a piece, the two are joined. If
 * `open`, `text` is the beginning of a longer text, and only ids that do not depend on the text
 * that follows are appended.
 */
int kvd_llama2c_tok_encode(const kvd_llama2c *t, const char *text, size_t len, bool open, bool bos,
                           kvd_ids *ids, kvd_err *err);

/*
 * Appends the bytes of the pieces of n token ids to *out. A space directly after id 1 is dropped,
 * and a piece "<0xNN>" is one byte.
 */
int kvd_llama2c_tok_decode(const kvd_llama2c *t, const uint32_t *id, size_t n, kvd_buffer *out,
                           kvd_err *err);

struct json_t;

/*
 * Returns the tokenizer.json of a GGUF file, built from the GGUF values; the caller owns it.
 * Supports tokenizer.ggml.model `llama` (SentencePiece BPE with byte fallback) and `gpt2`
 * (byte-level BPE, split into words as tokenizer.ggml.pre says).
 *
 * A SentencePiece vocabulary has scores instead of BPE merges. As in Transformers, the merges are
 * then all pairs of tokens whose concatenation is a token, ordered by the score of that token, best
 * first. BOS and EOS are added to each text as the flags in the file say. If a flag is missing, its
 * value is the default of llama.cpp.
 *
 * On failure returns NULL and fills *err: if the file has no tokenizer, one of another kind, or
 * lists that contradict each other.
 */
struct json_t *kvd_gguf_tokenizer(const kvd_gguf *g, kvd_err *err);

/*
 * Joins neighbouring symbols of a word, best pair first: the loop of byte-pair encoding, for
 * tokenizer.json and for llama2.c. A heap keeps the candidates, so a word of n symbols takes O(n
 * log n) steps.
 *
 * A word may be a whole document, and is joined part by part. Two characters that are not
 * neighbours in any merged token are never joined, so the symbols before and after such a boundary
 * do not depend on each other. Memory is proportional to the distance between boundaries, not to
 * the length of the word, and the ids before a boundary are known before the rest of the word is
 * read.
 */

typedef struct {
    uint32_t id;
    uint32_t before, after; /* indices of the neighbouring symbols; UINT32_MAX: none */
    bool gone;              /* true if joined into the symbol before it */
} kvd_symbol;

/* Two neighbouring symbols that may be joined. The candidates are elements of a heap. */
typedef struct {
    uint64_t order; /* merge priority, then position in the word */
    uint32_t id;    /* id of the joined symbol */
} kvd_merge_candidate;

/*
 * Merge rule: returns true if symbols `left` and `right` may be joined, and then fills *id with the
 * joined symbol and *priority (the smallest is joined first).
 */
typedef bool (*kvd_merge_rule)(const void *context, uint32_t left, uint32_t right,
                               uint32_t *priority, uint32_t *id);

/*
 * Set of pairs of neighbouring characters that occur in merged tokens. Between two characters that
 * are not in the set, a word can be cut in two parts that are merged separately. Stored as one bit
 * per hash value, so it may seem to contain pairs that were not added.
 */
typedef struct kvd_pair_set kvd_pair_set;

kvd_pair_set *kvd_pair_set_new(kvd_err *err);
void kvd_pair_set_free(kvd_pair_set *set);
/* Adds all pairs of neighbouring characters of the merged token `product` to the set. */
void kvd_pair_set_add(kvd_pair_set *set, const char *product, size_t len);

/* Merge rules of a vocabulary; they do not change while words are joined. */
typedef struct {
    kvd_merge_rule rule;
    /* First argument of every call of `rule`. */
    const void *context;
    /*
     * Strings of the symbols, found by id. The string of a joined symbol is that of its left symbol
     * followed by that of its right symbol.
     */
    const kvd_vocab *vocab;
    /*
     * Set of the pairs of neighbouring characters that occur in joined symbols. Two symbols are
     * never joined if the last character of the first one and the first character of the second one
     * are not in the set.
     */
    const kvd_pair_set *pairs;
} kvd_merge_model;

/* Working memory for joining the symbols of one word. */
typedef struct {
    const kvd_merge_model *model;
    /* Receives the token ids of the parts of the word whose symbols have been merged. */
    kvd_ids *ids;
    kvd_symbol *symbol;
    size_t n, capacity;
    /*
     * When the list has this many symbols, kvd_merge_add merges the symbols collected so far, which
     * shortens the list.
     */
    size_t full;
    kvd_merge_candidate *heap;
    size_t n_heap, heap_capacity;
} kvd_merge_work;

/* Starts a word whose token ids are appended to *ids. Memory is kept between words. */
void kvd_merge_start(kvd_merge_work *w, const kvd_merge_model *model, kvd_ids *ids);

/*
 * Appends a symbol to the word. If many symbols are waiting to be merged, merges those before the
 * last boundary (a position that no joined symbol can cross) and appends their token ids to w->ids.
 */
int kvd_merge_add(kvd_merge_work *w, uint32_t id, kvd_err *err);

/*
 * Ends a word: joins neighbouring symbols until no two can be joined, and appends the ids that
 * remain. The pair with the smallest priority is joined first, and of equal pairs the leftmost.
 *
 * If `open`, the word continues with unknown text, which may be joined with the last symbols. Only
 * symbols before the last boundary (a position that no joined symbol can cross) are then joined and
 * appended; the others are dropped.
 */
int kvd_merge_end(kvd_merge_work *w, bool open, kvd_err *err);

void kvd_merge_release(kvd_merge_work *w);

#endif
