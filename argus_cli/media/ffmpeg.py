"""A film that FFmpeg decodes, through PyAV: its frames in order, from anywhere, with true times.

FFmpeg can reach nothing but the one stream that it is handed: no protocol is open to it, and no
format that names other files. Its log lines stay inside PyAV, which drops them unless the host
program asked for them (av.logging): nothing process-wide is changed here. Knows nothing of pixels.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from fractions import Fraction
from itertools import chain
from logging import getLogger
from math import inf
from typing import TYPE_CHECKING, BinaryIO, cast

from argus_cli.errors import VideoError
from argus_cli.media.images import DEFAULT_MAX_PIXELS
from argus_cli.media.shots import FFmpegShot

if TYPE_CHECKING:
    from av import Packet as AnyPacket
    from av import VideoFrame, VideoStream
    from av.container import InputContainer
    from av.video.codeccontext import VideoCodecContext

    Packet = AnyPacket[VideoStream]

logger = getLogger(__name__)

HOLE_S = 0.2  # a stretch without frames that is worth a warning
THREADS = 4  # each holds frames of its own; more would cost memory and take from the model
A_DAY_S = 86400
RATE = 25  # frames a second where nothing is told, as FFmpeg has it

NO_TIMESTAMPS = 0x80  # AVFMT_NOTIMESTAMPS, of formats that are bare streams
ONE_KEYFRAME = ("gif", "apng")  # formats where seeking means starting again
BOXES = (b"ftyp", b"mdat", b"moov", b"wide", b"free", b"skip")  # how MP4 and MOV begin
SEES_ALPHA = {"vp8": "libvpx", "vp9": "libvpx-vp9"}  # codec -> the decoder that does

# FFmpeg's names of the formats that hold their own pictures. The last row is there to say "no
# video stream" of a sound file.
FORMATS = (
    "mov,matroska,avi,mpegts,mpeg,flv,live_flv,ogg,asf,mxf,nut,ivf,dv,rm,gxf,wtv,yuv4mpegpipe,"
    "gif,apng,h264,hevc,vvc,av1,obu,m4v,mpegvideo,h263,h261,dirac,vc1,mjpeg,cavsvideo,amv,"
    "mp3,aac,flac,wav,aiff,ac3,eac3,amr,caf"
)


class FFmpegReel:
    """A Reel of everything but animated WebP; ``name`` is for warnings."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        import av

        self._file, self._name = file, name
        self._open()
        container, rate = self._container, self._stream.average_rate
        self.fps = float(rate) if rate else None
        self._step = float(1 / (rate or self._stream.guessed_rate or RATE))
        self._has_times = not container.format.flags & NO_TIMESTAMPS
        self.can_jump = self._has_times and container.format.name not in ONE_KEYFRAME
        self._lead = 0.0  # how long before a time to seek for it to be decoded
        self._origin = Fraction(container.start_time or 0, av.time_base)  # of the film's clock
        if container.start_time is None:  # a film too short for FFmpeg to find out
            self._origin = Fraction(next(self._times(next(self._packets())), 0))

    def _open(self) -> None:
        import av

        self._file.seek(0)
        self._container = _container(self._file)
        self._stream = _film_stream(self._container)
        self._decoder = _decoder(self._stream)
        self._base = self._stream.time_base or Fraction(1, av.time_base)
        self._is_fresh, self._is_broken = True, False

    def close(self) -> None:
        self._container.close()

    def shots(self) -> Iterator[FFmpegShot]:
        if not self._is_fresh:
            self._rewind()
        return self._unwind(self._packets(), index=0)

    def shots_near(self, time: float) -> Iterator[FFmpegShot] | None:
        # Where a seek lands is never trusted. Indexes hold decoding times or nothing at all, and a
        # decoder may need some frames to get going: what counts is that a frame at or before the
        # time comes out.
        while self.can_jump:
            if not self._seek(time - self._lead):
                self.can_jump = False
                break
            shots = self._unwind_from_key(time)
            first = next(shots, None)
            if first and first.time <= time:
                return chain([first], shots)
            if self._lead >= time:
                break
            self._lead = 2 * self._lead or 0.5
        return None

    def duration(self) -> float:
        # By the last packets: what headers say is often missing, estimated or cut short.
        import av

        told = self._container.duration
        end = None
        if self.can_jump and told and self._seek(told / av.time_base):
            end = self._end()
        if end is None:
            self._rewind()
            end = self._end()
        if not self._has_times:
            rate = 1 / self._step
            logger.warning("%s: has no times, taken as %.4g frames a second", self._name, rate)
        return max(0.0, end or 0.0)

    def _rewind(self) -> None:
        """Opens it again: seeking to the beginning loses the first frames of some formats."""
        self.close()
        self._open()

    def _seek(self, time: float) -> bool:
        import av

        self._is_fresh = self._is_broken = False
        try:
            self._container.seek(round((time + self._origin) / self._base), stream=self._stream)
        except (av.FFmpegError, OverflowError):
            return False
        self._decoder.flush_buffers()
        return True

    def _packets(self) -> Iterator["Packet | None"]:
        """What the film holds from here on, still encoded; None at its end."""
        import av

        self._is_fresh = False
        try:
            # An empty packet would tell the decoder that this is the end.
            yield from (packet for packet in self._container.demux(self._stream) if packet.size)
        except (av.FFmpegError, OSError) as error:
            logger.warning("%s: unreadable from here on (%s)", self._name, error)
        yield None

    def _end(self) -> float | None:
        """When the last of the packets to come ends."""
        end = None
        for count, packet in enumerate(self._packets()):
            if packet is not None:
                start = next(self._times(packet), count * self._step)
                length = float((packet.duration or 0) * self._base) or 1 / (self.fps or inf)
                if start - (end or 0.0) < A_DAY_S:  # else damage speaks
                    end = max(end or 0.0, start + length)
        return end

    def _times(self, item: "Packet | VideoFrame | None") -> Iterator[float]:
        """When it is shown, on the film's clock: what is most to be believed comes first.

        To the microsecond, in which FFmpeg tells the film's start.
        """
        if item is not None:
            # AVI holds no presentation times and FFmpeg guesses them badly. But frames come out of
            # the decoder in the order shown, with decoding times in theirs.
            is_avi = self._container.format.name == "avi"
            for ticks in (item.dts,) if is_avi else (item.pts, item.dts):
                if ticks is not None:
                    yield round(float(ticks * self._base - self._origin), 6)

    def _unwind_from_key(self, time: float) -> Iterator[FFmpegShot]:
        """From the next keyframe on, without what comes out before it; nothing if it is late."""
        packets = self._packets()
        for packet in packets:
            start = next(self._times(packet), -inf)
            if packet is None or start > time:
                return
            if packet.is_keyframe and start > -inf:
                break
        shots = self._unwind(chain([packet], packets), index=None)
        yield from (shot for shot in shots if shot.time >= start)

    def _unwind(
        self, packets: Iterable["Packet | None"], index: int | None
    ) -> Iterator[FFmpegShot]:
        """What the packets decode to. Frames out of order, which damage leaves, are dropped."""
        due: list[int] = []  # times of packets whose frame hasn't come out yet
        last, clock = (
            -inf,
            -inf if index is None else -self._step,
        )  # what frames without a time go by
        for packet in packets:
            if packet is not None and packet.pts is not None and not packet.is_discard:
                due.append(packet.pts)
            for frame in self._decode(packet):
                due = self._still_due(due, frame.pts)
                times = list(self._times(frame)) or [clock + self._step]
                time = next((time for time in times if time > last), None)
                if time is not None:
                    aspect = self._stream.sample_aspect_ratio
                    yield FFmpegShot(round(time, 6), index, frame, aspect)
                    last = clock = time
                    index = None if index is None else index + 1
        self._still_due(due, max(due, default=None))

    def _decode(self, packet: "Packet | None") -> list["VideoFrame"]:
        import av

        frames = []
        try:
            if self._is_broken and packet is not None and packet.is_keyframe:
                # What damage has left in a decoder spoils frames until long after: start afresh.
                self._is_broken = False
                frames = self._decoder.decode(None)
                self._decoder.flush_buffers()
            return frames + self._decoder.decode(packet)
        except av.FFmpegError:  # its frame stays due
            self._is_broken = True
            return frames

    def _still_due(self, due: list[int], pts: int | None) -> list[int]:
        """What is due after the frame of that time, with a warning of what will never come."""
        if pts is None:
            return due
        lost = min((time for time in due if time < pts), default=pts)
        if (pts - lost) * self._base > HOLE_S:
            ends = (float(time * self._base - self._origin) for time in (lost, pts))
            logger.warning("%s: damaged, nothing decodes from %.2f s to %.2f s", self._name, *ends)
        return [time for time in due if time > pts]


def _container(file: BinaryIO) -> "InputContainer":
    import av

    options = {
        "format_whitelist": FORMATS,
        "protocol_whitelist": "",
        "max_pixels": str(DEFAULT_MAX_PIXELS),
    }
    try:
        return av.open(file, "r", options=options, metadata_errors="replace")
    except av.FFmpegError as error:
        file.seek(4)
        if file.read(4) in BOXES:
            raise VideoError("incomplete recording: its index (moov) is missing") from error
        raise VideoError("not a film, or damaged from the start") from error


def _film_stream(container: "InputContainer") -> "VideoStream":
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


def _decoder(stream: "VideoStream") -> "VideoCodecContext":
    """What decodes it. The transparency of VP8 and VP9 is a side channel that only libvpx reads."""
    from av import CodecContext

    decoder = stream.codec_context
    if stream.metadata.get("alpha_mode") == "1" and decoder.name in SEES_ALPHA:
        with suppress(ValueError):  # PyAV may be built without it
            decoder = cast("VideoCodecContext", CodecContext.create(SEES_ALPHA[decoder.name], "r"))
    decoder.thread_type, decoder.thread_count = "AUTO", THREADS
    return decoder
