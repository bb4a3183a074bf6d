/*
 * Chat formats: the text that a model's chat template puts around the messages of one user and one
 * assistant, without tools. A template is a Jinja program; it is not run here, but recognised by
 * parts of its text. tests/oracle/make_chat.py compares every format with published templates run
 * by jinja2.
 *
 * A conversation consists of `bos` and `start`, then for each turn `user`, the user's message,
 * `header`, and the answer. The text `end` comes between an answer and the next user message.
 */
#ifndef KVD_MODEL_TEXT_CHAT_H
#define KVD_MODEL_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

enum { KVD_CHAT_MARKS = 4 };

typedef struct {
    const char *name;
    const char *bos;   /* beginning-of-text token, or "" */
    const char *start; /* default system message, or "" */
    const char *user;
    /* Text after a user's message, up to and including the header of the assistant's answer. */
    const char *header;
    const char *end;
    /* Token with which the model ends its answer; in a continued conversation `end` replaces it. */
    const char *stop;
    bool trim; /* true if white space at both ends of a user's message is removed */
    /*
     * True if the template removes reasoning from earlier answers. A KV cache still holds the
     * reasoning, so such a format is only correct for one turn.
     */
    bool one_turn;
    bool end_eos; /* true: the text `stop` is the eos_token of tokenizer_config.json */
    /*
     * A chat template has this format if it contains all strings of `has` and none of `lacks`.
     * Before the comparison, escapes \n in the template become line feeds, double quotes become
     * single quotes, and 'a' + 'b' becomes 'ab'. NULL ends a list.
     */
    const char *has[KVD_CHAT_MARKS], *lacks[KVD_CHAT_MARKS];
} kvd_chat;

/* Values that the option --chat accepts; NULL ends the list of values. */
extern const char *const kvd_chat_words[];
enum { KVD_CHAT_NONE, KVD_CHAT_AUTO };

/* Returns the chat format named kvd_chat_words[word], or NULL for "none" and "auto". */
const kvd_chat *kvd_chat_form(int word);

/* Returns the chat format of a template, or NULL if no format matches. */
const kvd_chat *kvd_chat_recognise(const char *template_text);

/*
 * Reads chat_template.jinja in the model's folder or, without it, chat_template in
 * tokenizer_config.json: a string, or a list of templates of which "default" is used. *path
 * receives the allocated path of that file. Returns NULL and fills *err if there is no template, if
 * no format matches, or if tokenizer_config.json names another bos_token or eos_token than the
 * format.
 */
const kvd_chat *kvd_chat_read(const char *folder, char **path, kvd_err *err);

/* One turn of a conversation, as strings that are tokenized separately, in this order. */
typedef struct {
    /*
     * The three texts before the user's message, any of which may be empty: [0] the
     * beginning-of-text token (first turn only); [1] the system message (first turn) or the text
     * after the previous answer; [2] the text that begins a user's message.
     */
    const char *before[3];
    const char *text; /* user's message, `len` bytes inside the caller's text */
    size_t len;
    /* Text after the user's message, up to and including the header of the assistant's answer. */
    const char *after;
} kvd_chat_pieces;

/*
 * Returns the texts of one turn with the user's message `text`. `first` is true for the first turn;
 * a later turn begins with c->end. If c is NULL, returns the message alone. `text` must be valid
 * UTF-8.
 */
kvd_chat_pieces kvd_chat_around(const kvd_chat *c, const char *text, bool first);

#endif
