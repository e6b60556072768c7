/* JPEGs by the libjpeg-turbo that is in the process already, straight into the rows of a picture: Pillow asks for one row
 * at a time and copies it. Whatever the library so much as warns of is refused. Knows nothing of Python.
 *
 * The library's functions are handed in, and it is asked for its version and for the size of its structure. What is
 * declared here is the beginning of that structure, the same in versions 62, 70 and 80; sizes that the caller knows are
 * compared with what stands there before anything is written. */

#include <setjmp.h>
#include <stdint.h>
#include <string.h>

typedef struct Picture Picture;

typedef struct {
    void (*leave)(Picture *);
    void (*remark)(Picture *, int level);
    void (*print)(Picture *);
    void (*format)(Picture *, char *);
    void (*reset)(Picture *);
    int code;
    union {
        int numbers[8];
        char text[80];
    } about;
    char rest[512]; /* the library's, which uses less */
    jmp_buf back;
} Errors;

struct Picture {
    Errors *errors;
    void *memory, *progress, *client;
    int is_decompressor, state;
    void *source;
    unsigned width, height;
    int num_components, colours, wanted_colours;
    unsigned scale, scale_of;
    double gamma;
    int flags[12];
    unsigned result_width, result_height;
    int num_colours, pixel_bytes, best_rows, num_palette;
    void *palette;
    unsigned num_rows_read;
    char rest[4096]; /* the library's, which says how much it uses */
};

typedef struct {
    Errors *(*standard_errors)(Errors *);
    void (*create)(Picture *, int version, size_t num_bytes);
    void (*read_memory)(Picture *, const uint8_t *, unsigned long num_bytes);
    int (*read_header)(Picture *, int must_have_picture);
    int (*start)(Picture *);
    unsigned (*read_rows)(Picture *, uint8_t **rows, unsigned num_rows);
    int (*finish)(Picture *);
    void (*destroy)(Picture *);
} Library;

enum { GREY = 1, RGBX = 7, FOUND_HEADER = 1, AT_ONCE = 16 };

static void leave(Picture *picture) { longjmp(picture->errors->back, 1); }

static void remark(Picture *picture, int level) {
    if (level < 0) leave(picture); /* a warning: the data are damaged */
}

static void prepare(const Library *library, Picture *picture, Errors *errors) {
    memset(picture, 0, sizeof *picture);
    picture->errors = library->standard_errors(errors);
    errors->leave = leave;
    errors->remark = remark;
}

/* What the library says of a version, or of a size, that is not its own. */
static int ask(const Library *library, int version) {
    Picture picture;
    Errors errors;
    prepare(library, &picture, &errors);
    if (setjmp(errors.back)) return errors.about.numbers[0];
    library->create(&picture, version, 0);
    library->destroy(&picture);
    return 0;
}

/* The version and the bytes of the structure; 0 where they are not to be had. */
int slipstream_jpeg_ask(const Library *library, int *version, int *num_bytes) {
    *version = ask(library, 0);
    *num_bytes = *version ? ask(library, *version) : 0;
    return *version >= 62 && *version <= 80 && *num_bytes > 400 && (size_t)*num_bytes <= sizeof(Picture);
}

/* The first rows of a picture of this size; all of them: to its end. Whether they are all there. */
int slipstream_jpeg_decode(const Library *library, int version, int num_bytes, const uint8_t *data, size_t length,
                           uint8_t **rows, unsigned width, unsigned height, unsigned num_rows, int pixel_bytes) {
    Picture picture;
    Errors errors;
    volatile int is_done = 0;
    prepare(library, &picture, &errors);
    if (setjmp(errors.back) == 0) {
        library->create(&picture, version, (size_t)num_bytes);
        library->read_memory(&picture, data, (unsigned long)length);
        is_done = library->read_header(&picture, 1) == FOUND_HEADER && picture.width == width && picture.height == height;
        if (is_done) {
            picture.wanted_colours = pixel_bytes == 1 ? GREY : RGBX;
            is_done = library->start(&picture) && picture.result_width == width && picture.result_height == height &&
                      picture.pixel_bytes == pixel_bytes;
        }
        while (is_done && picture.num_rows_read < num_rows) {
            unsigned left = num_rows - picture.num_rows_read;
            is_done = library->read_rows(&picture, rows + picture.num_rows_read, left < AT_ONCE ? left : AT_ONCE) > 0;
        }
        if (is_done && num_rows == height) is_done = library->finish(&picture);
    } else {
        is_done = 0;
    }
    library->destroy(&picture);
    return is_done;
}
