/*
 * The steps of a tokenizer, in the order in which a text passes them: normalizer, added tokens,
 * pre-tokenizer, byte-pair encoding, post-processor; then the decoder, and the whole tokenizer of
 * llama2.c.
 */
#ifndef KVD_MODEL_TEXT_TOKENIZER_STEPS_H
#define KVD_MODEL_TEXT_TOKENIZER_STEPS_H

#include <jansson.h>

#include "model/checkpoint/gguf.h"
#include "model/text/tokenizer.h"
#include "model/text/tokenizer/pieces.h"

/*
 * Vocabulary of a tokenizer: table of pieces (strings) and their ids, searched by piece or by id.
 * Ids may have gaps; memory is proportional to the number of pieces.
 */

typedef struct {
    size_t begin; /* offset in kvd_vocab.text */
    uint32_t len, id;
} kvd_vocab_entry;

typedef struct {
    kvd_buffer text;
    kvd_vocab_entry *entry; /* sorted by id after kvd_vocab_build */
    size_t n, capacity;
    uint32_t *slot; /* hash table of entry index + 1; 0 means free */
    size_t n_slots; /* size of `slot`, a power of two */
    size_t longest; /* length of the longest piece in bytes */
} kvd_vocab;

/*
 * kvd_vocab_add appends one piece. kvd_vocab_build then builds the tables, and fails if a piece or
 * an id occurs twice.
 */
int kvd_vocab_add(kvd_vocab *v, const char *piece, size_t len, uint32_t id, kvd_err *err);
int kvd_vocab_build(kvd_vocab *v, kvd_err *err);
void kvd_vocab_release(kvd_vocab *v);

bool kvd_vocab_find(const kvd_vocab *v, const char *piece, size_t len, uint32_t *id);
/* Returns the piece of an id, not zero-terminated, or NULL if no piece has the id. */
const char *kvd_vocab_piece(const kvd_vocab *v, uint32_t id, size_t *len);
/* Returns the largest id + 1, or 0 if the vocabulary is empty. */
size_t kvd_vocab_end(const kvd_vocab *v);

/*
 * The "normalizer" of tokenizer.json, applied to each stretch of text between added tokens.
 * Normal forms are those of Unicode 9.0, as in Hugging Face tokenizers; Lowercase maps letters by
 * the Unicode version of utf8proc and fails on characters that this version lacks. Normalizers of
 * other types are refused when the file is read.
 */

typedef struct kvd_normalizer kvd_normalizer;

/*
 * Reads a normalizer from the JSON object `spec`; JSON null means no normalizer. Returns NULL with
 * *err on failure.
 */
kvd_normalizer *kvd_normalizer_parse(const json_t *spec, kvd_err *err);
void kvd_normalizer_free(kvd_normalizer *n);

/*
 * Normalizes *text in place (it grows and shrinks) and overwrites *scratch. If `first` is not NULL,
 * it is updated: the number of bytes of *text that come from the first character of the document
 * (see kvd_piece).
 *
 * If `open`, the document continues after *text. The result in *text is then a prefix that the
 * normalized forms of all such documents share. Fails if the text grows to more than 64 times its
 * size plus 64 KiB.
 */
int kvd_normalizer_apply(const kvd_normalizer *n, kvd_buffer *text, kvd_buffer *scratch,
                         size_t *first, bool open, kvd_err *err);

/* Normalizes the texts of a list of pieces; ids are not changed. */
int kvd_normalizer_apply_pieces(const kvd_normalizer *n, kvd_pieces *p, kvd_err *err);

/*
 * The "added_tokens" of tokenizer.json: strings that become an id before the model sees the text.
 * If several match, the leftmost match is used, and of matches at one place the longest.
 */

typedef struct kvd_added_tokens kvd_added_tokens;

/*
 * Reads the array `spec`, which may be NULL. Ids in the file must be the ones that Hugging Face
 * tokenizers would assign: the model's id for a string of the vocabulary, else the next free id.
 * Returns NULL with *err on failure.
 */
kvd_added_tokens *kvd_added_tokens_parse(const json_t *spec, const kvd_vocab *vocab,
                                         const kvd_normalizer *n, kvd_err *err);
void kvd_added_tokens_free(kvd_added_tokens *a);

/*
 * Cuts the added tokens out of the pieces: those that match before the normalizer if `normalized`
 * is false, else those that match after it.
 */
int kvd_added_tokens_split(const kvd_added_tokens *a, bool normalized, kvd_pieces *p, kvd_err *err);

/* Returns the text of an added token in decoded text, or NULL if the id is not an added token. */
const char *kvd_added_tokens_text(const kvd_added_tokens *a, uint32_t id, size_t *len);

/* Returns the largest id of an added token + 1, or 0 if there are no added tokens. */
size_t kvd_added_tokens_end(const kvd_added_tokens *a);

/*
 * The "pre_tokenizer" of tokenizer.json, which cuts text into the words that the model sees.
 * Supports ByteLevel, Split, Punctuation, Metaspace, Digits, Whitespace, WhitespaceSplit and a
 * Sequence of them. Split and Digits may also follow ByteLevel; they then see its alphabet and may
 * cut inside a character.
 */

typedef struct kvd_pretokenizer kvd_pretokenizer;

/*
 * Reads the object `spec`; with JSON null, a whole document is one word. Returns NULL with *err on
 * failure.
 */
kvd_pretokenizer *kvd_pretokenizer_parse(const json_t *spec, kvd_err *err);
void kvd_pretokenizer_free(kvd_pretokenizer *p);

/*
 * Returns true if ByteLevel is a part of the pre-tokenizer. The model then works on bytes. The
 * pieces keep their bytes unchanged; the model's tables spell them in ByteLevel's alphabet.
 */
bool kvd_pretokenizer_byte_level(const kvd_pretokenizer *p);

int kvd_pretokenizer_apply(const kvd_pretokenizer *p, kvd_pieces *pieces, kvd_err *err);

/*
 * The "model" of tokenizer.json: BPE. A word is split into its characters (or its bytes, if
 * byte-level); then neighbouring symbols are joined in the order of the list of merges.
 */

typedef struct kvd_bpe kvd_bpe;
typedef struct kvd_bpe_work kvd_bpe_work; /* buffers and a word cache; one per thread */

/*
 * Reads the model. If `byte_level`, words are given as bytes, which the vocabulary spells in the
 * alphabet of kvd_byte_to_char. Returns NULL with *err on failure.
 */
kvd_bpe *kvd_bpe_parse(const json_t *model, bool byte_level, kvd_err *err);
void kvd_bpe_free(kvd_bpe *m);

/* Returns the vocabulary of the BPE model, which m owns. */
const kvd_vocab *kvd_bpe_vocab(const kvd_bpe *m);

kvd_bpe_work *kvd_bpe_work_new(const kvd_bpe *m, kvd_err *err);
void kvd_bpe_work_free(kvd_bpe_work *w);

/*
 * Appends the ids of one word, which is valid UTF-8, or any bytes with byte_level. A character that
 * is neither in the vocabulary nor covered by byte fallback becomes unk_token; without an unk_token
 * it is left out, as Hugging Face tokenizers does. If `open`, word [len] is the start of a longer
 * word, and only ids that all such words begin with are appended.
 */
int kvd_bpe_encode(const kvd_bpe *m, kvd_bpe_work *w, const char *word, size_t len, bool open,
                   kvd_ids *ids, kvd_err *err);

/*
 * The "post_processor" of tokenizer.json, which adds ids before and after the ids of the text.
 * Supports ByteLevel (which changes offsets only), TemplateProcessing for one sequence, and a
 * Sequence of them.
 */

typedef struct {
    bool is_text; /* true: the place of the text's ids; false: the single id below */
    uint32_t id;
} kvd_template_part;

typedef struct {
    kvd_template_part *part;
    size_t n, capacity;
} kvd_template;

/*
 * Reads a post-processor from the JSON object `spec`; JSON null means the text's ids alone. The
 * caller must release t on failure too.
 */
int kvd_template_parse(const json_t *spec, kvd_template *t, kvd_err *err);
void kvd_template_release(kvd_template *t);

/*
 * Appends the text's ids to *ids with the template's ids around them; special ids only if
 * `add_special`. If `open`, more ids of the text follow, so nothing is appended after them.
 */
int kvd_template_apply(const kvd_template *t, const kvd_ids *text, bool open, bool add_special,
                       kvd_ids *ids, kvd_err *err);

/*
 * The "decoder" of tokenizer.json, which joins the strings of ids, in order, into text. Supports
 * ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip, and a Sequence of them.
 */

typedef struct kvd_token_decoder kvd_token_decoder;

/*
 * List of strings, one after another: string i is text.s[end[i - 1] .. end[i]), with end[-1] = 0.
 */
typedef struct {
    kvd_buffer text;
    size_t *end;
    size_t n, capacity;
} kvd_strings;

int kvd_strings_add(kvd_strings *l, const char *s, size_t len, kvd_err *err);
void kvd_strings_release(kvd_strings *l);

/*
 * Reads the object `spec`; with JSON null, strings are joined with spaces. Returns NULL with *err
 * on failure.
 */
kvd_token_decoder *kvd_token_decoder_parse(const json_t *spec, kvd_err *err);
void kvd_token_decoder_free(kvd_token_decoder *d);

/* Appends the text of the strings to *out; the contents of `strings` are overwritten. */
int kvd_token_decoder_apply(const kvd_token_decoder *d, kvd_strings *strings, kvd_buffer *out,
                            kvd_err *err);

/*
 * The tokenizer.bin of llama2.c: uint32 length of the longest piece, then per piece float32 score,
 * int32 length and bytes (little-endian). Neighbours whose concatenation is a piece are joined,
 * highest score first, leftmost on ties. A character that is not a piece becomes its bytes, as ids
 * 3 + byte, whatever the pieces with those ids are (a vocabulary of characters has no byte pieces
 * there).
 */

typedef struct kvd_llama2c kvd_llama2c;

kvd_llama2c *kvd_llama2c_tok_parse(const void *bytes, size_t len, size_t vocab_size, kvd_err *err);
void kvd_llama2c_tok_free(kvd_llama2c *t);

/*
 * Appends the ids of a text. A text that is not empty gets a leading space. With `bos`, id 1 comes
 * first, and it may be joined with its neighbour too. If `open`, text [len] is the start of a
 * longer text, and only ids that all such texts begin with are appended.
 */
int kvd_llama2c_tok_encode(const kvd_llama2c *t, const char *text, size_t len, bool open, bool bos,
                           kvd_ids *ids, kvd_err *err);

/* Appends the bytes of the ids: a space directly after id 1 is dropped, and <0xNN> is one byte. */
int kvd_llama2c_tok_decode(const kvd_llama2c *t, const uint32_t *id, size_t n, kvd_buffer *out,
                           kvd_err *err);

/* Reads the tokenizer of a GGUF file by rebuilding the tokenizer.json of its model. */

struct json_t; /* from jansson */

/*
 * Returns the tokenizer.json of a GGUF file, which the caller owns. Supports tokenizer.ggml.model
 * `llama` (SentencePiece BPE with byte fallback) and `gpt2` (byte-level BPE, split into words as
 * tokenizer.ggml.pre says).
 *
 * A SentencePiece vocabulary has scores instead of BPE merges. The merges are then all pairs of
 * pieces whose concatenation is a piece, ordered by the score of that piece, best first, as
 * Transformers makes them. BOS and EOS are added if the file says so; if it says nothing, as
 * llama.cpp adds them.
 *
 * Returns NULL with *err if the file holds no tokenizer, one of another kind, or lists that
 * contradict each other.
 */
struct json_t *kvd_gguf_tokenizer(const kvd_gguf *g, kvd_err *err);

/*
 * Joins neighbouring symbols, best pair first: the loop that both kinds of byte pair encoding
 * share. A heap keeps the candidates, so a word of n symbols takes O(n log n) steps.
 *
 * A word may be a whole document. It is joined part by part: two characters that are not neighbours
 * in any product of a merge are never joined, so the symbols on the two sides of such a boundary do
 * not depend on each other. Memory follows the distance between such boundaries, not the length of
 * the word, and the ids before a boundary are known before the rest of the word is.
 */

typedef struct {
    uint32_t id;
    uint32_t before, after; /* indices of the neighbours; UINT32_MAX: none */
    bool gone;              /* true if joined into the symbol before it */
} kvd_symbol;

typedef struct {
    uint64_t order; /* priority, then position */
    uint32_t id;    /* id of the joined pair */
} kvd_merge_candidate;

/*
 * Rule that tells which symbols merge: returns true if left and right do, and fills *id with the
 * merged symbol and *priority (the smallest is joined first).
 */
typedef bool (*kvd_merge_rule)(const void *context, uint32_t left, uint32_t right,
                               uint32_t *priority, uint32_t *id);

/*
 * Set of pairs of neighbouring characters, as one bit per hash value. It may seem to contain pairs
 * that were not added.
 */
typedef struct kvd_pair_set kvd_pair_set;

kvd_pair_set *kvd_pair_set_new(kvd_err *err);
void kvd_pair_set_free(kvd_pair_set *set);
/* Adds all pairs of neighbouring characters of one merged piece to the set. */
void kvd_pair_set_add(kvd_pair_set *set, const char *product, size_t len);

/* Merge rules of a vocabulary; they do not change while words are joined. */
typedef struct {
    kvd_merge_rule rule;
    /* First argument of every call of `rule`. */
    const void *context;
    /*
     * texts of all symbols. The text of a merged symbol is the text of its left part followed by
     * that of its right part
     */
    const kvd_vocab *vocab;
    /* Pairs of neighbouring characters in the texts that `rule` can produce. */
    const kvd_pair_set *pairs;
} kvd_merge_model;

typedef struct {
    const kvd_merge_model *model;
    kvd_ids *ids; /* receives the ids of parts that are joined */
    kvd_symbol *symbol;
    size_t n, capacity;
    size_t full; /* number of symbols at which the next part is joined */
    kvd_merge_candidate *heap;
    size_t n_heap, heap_capacity;
} kvd_merge_work;

/* Starts a word whose ids are appended to *ids. Memory is kept between words. */
void kvd_merge_start(kvd_merge_work *w, const kvd_merge_model *model, kvd_ids *ids);

/* Appends a symbol to the word. May append the ids of earlier parts of the word to the result. */
int kvd_merge_add(kvd_merge_work *w, uint32_t id, kvd_err *err);

/*
 * Joins symbols until no pair merges: each time the pair of smallest priority, leftmost on ties.
 * Appends the ids. If the word is open, symbols after the last position that no merge can cross are
 * dropped, because the text that follows may still be joined with them.
 */
int kvd_merge_end(kvd_merge_work *w, bool open, kvd_err *err);

void kvd_merge_release(kvd_merge_work *w);

#endif
