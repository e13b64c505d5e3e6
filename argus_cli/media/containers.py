"""A film's file opened with PyAV: which stream of it is the film, and what decodes that.

FFmpeg can reach nothing but the one file that it is handed: no protocol is open to it, and no
format that names other files. Its log lines stay inside PyAV, which drops them unless the host
program asked for them (av.logging): nothing process-wide is changed here. Knows nothing of times.
"""

import os
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, cast

from argus_cli.errors import VideoError
from argus_cli.media.images import DEFAULT_MAX_PIXELS

if TYPE_CHECKING:
    from av import VideoStream
    from av.container import InputContainer
    from av.video.codeccontext import VideoCodecContext

THREADS = 4  # each holds frames of its own; more would cost memory and take from the model
BOXES = (b"ftyp", b"mdat", b"moov", b"wide", b"free", b"skip")  # how MP4 and MOV begin
MATROSKA = (b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67")  # its two outermost parts, head and body
SEES_ALPHA = {"vp8": "libvpx", "vp9": "libvpx-vp9"}  # codec -> the decoder that does

# FFmpeg's names of the formats that hold their own pictures. The last row is there to say "no
# video stream" of a sound file.
FORMATS = (
    "mov,matroska,avi,mpegts,mpeg,flv,live_flv,ogg,asf,mxf,nut,ivf,dv,rm,gxf,wtv,yuv4mpegpipe,"
    "gif,apng,h264,hevc,vvc,av1,obu,m4v,mpegvideo,h263,h261,dirac,vc1,mjpeg,cavsvideo,amv,"
    "mp3,aac,flac,wav,aiff,ac3,eac3,amr,caf"
)


def open_container(file: BinaryIO) -> "InputContainer":
    """The file, read from where it is: FFmpeg can follow nothing that stands in it."""
    import av

    limits = {"format_whitelist": FORMATS, "protocol_whitelist": ""}
    try:
        return av.open(file, "r", container_options=limits, metadata_errors="replace")
    except av.FFmpegError as error:
        file.seek(4)
        reason = "not a film, or damaged from the start"
        if file.read(4) in BOXES:
            reason = "incomplete recording: its index (moov) is missing or damaged"
        raise VideoError(reason) from error


def is_cut_short(file: BinaryIO) -> bool:
    """Whether a Matroska file is smaller than it says in its beginning.

    https://www.rfc-editor.org/rfc/rfc8794#section-4.4 has how the sizes of its parts are written.
    """
    file.seek(0)
    head, at = file.read(128), 0
    for name in MATROSKA:
        if head[at : at + 4] != name or not head[at + 4 : at + 5]:
            return False
        length = 9 - head[at + 4].bit_length()
        most = (1 << 7 * length) - 1  # which means that it isn't known
        size = int.from_bytes(head[at + 4 : at + 4 + length]) & most
        at += 4 + length + size
    return size < most and at > file.seek(0, os.SEEK_END)


def film_stream(container: "InputContainer") -> "VideoStream":
    """The default one, or the largest. Cover art and chapter thumbnails are not the film."""
    from av.stream import Disposition

    stills = Disposition.attached_pic | Disposition.timed_thumbnails
    films = [stream for stream in container.streams.video if not stream.disposition & stills]
    if not films:
        raise VideoError("no video stream")
    films = [stream for stream in films if stream.codec_context]
    if not films:
        raise VideoError("no decoder for its kind of video")
    return max(
        films,
        key=lambda film: (bool(film.disposition & Disposition.default), film.width * film.height),
    )


def film_decoder(stream: "VideoStream") -> "VideoCodecContext":
    """What decodes it. The transparency of VP8 and VP9 is a side channel that only libvpx reads."""
    from av import CodecContext

    decoder = stream.codec_context
    if stream.metadata.get("alpha_mode") == "1" and decoder.name in SEES_ALPHA:
        with suppress(ValueError):  # PyAV may be built without it
            decoder = cast("VideoCodecContext", CodecContext.create(SEES_ALPHA[decoder.name], "r"))
    decoder.thread_type, decoder.thread_count = "AUTO", THREADS
    decoder.options = {"max_pixels": str(DEFAULT_MAX_PIXELS)}
    return decoder
