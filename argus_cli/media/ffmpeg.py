"""A film that FFmpeg decodes, through PyAV: its frames in order, from anywhere, with true times.

Knows nothing of pixels, nor of how the file is opened.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import chain, count, repeat
from logging import getLogger
from math import inf
from typing import TYPE_CHECKING, BinaryIO

from argus_cli.media.containers import film_decoder, film_stream, is_cut_short, open_container
from argus_cli.media.shots import FFmpegShot

if TYPE_CHECKING:
    from av import Packet as AnyPacket
    from av import VideoFrame, VideoStream

    Packet = AnyPacket[VideoStream]

logger = getLogger(__name__)

CUT_S = 1.0  # a film that ends so long before the end that its header tells has been cut short
HOLE_S = 0.2  # a stretch without frames that is worth a warning
A_DAY_S = 86400.0  # no frame is on screen that long: a time that jumps so far is wrong
RATE = 25  # frames a second where nothing is told, as FFmpeg has it

NO_TIMESTAMPS = 0x80  # AVFMT_NOTIMESTAMPS, of formats that are bare streams
ONE_KEYFRAME = ("gif", "apng")  # formats where seeking means starting again


class FFmpegReel:
    """A Reel of everything but animated WebP; ``name`` is for warnings."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        import av

        self._file, self._name = file, name
        self._is_cut = is_cut_short(file)
        self._open()
        container, rate = self._container, self._stream.average_rate
        self.fps = float(rate) if rate else None
        self._step = float(1 / (rate or self._stream.guessed_rate or RATE))
        self._has_times = not container.format.flags & NO_TIMESTAMPS
        self.can_jump = self._has_times and container.format.name not in ONE_KEYFRAME
        self._origin = Fraction(container.start_time or 0, av.time_base)  # of the film's clock
        if container.start_time is None:  # a film too short for FFmpeg to find out
            self._origin = Fraction(next(self._times(next(self._packets())), 0))

    def _open(self) -> None:
        import av

        self._file.seek(0)
        self._container = open_container(self._file)
        self._stream = film_stream(self._container)
        self._decoder = film_decoder(self._stream)
        self._base = self._stream.time_base or Fraction(1, av.time_base)
        self._is_fresh, self._is_broken = True, False

    def close(self) -> None:
        self._container.close()

    def shots(self) -> Iterator[FFmpegShot]:
        if not self._is_fresh:
            self._rewind()
        return self._unwind(self._packets(), counted=True)

    def shots_near(self, time: float) -> Iterator[FFmpegShot] | None:
        # Where a seek lands is never trusted: indexes hold decoding times or nothing at all, and a
        # decoder may need some frames to get going. A frame at or before the time has to come out;
        # if none does, it goes back further.
        lead = 0.0
        while self.can_jump and lead <= time:
            if not self._seek(time - lead):
                self.can_jump = False
                break
            shots = self._unwind_from_key(time)
            first = next(shots, None)
            if first and first.time <= time:
                return chain([first], shots)
            lead = 2 * lead or 0.5
        return None

    def duration(self) -> float:
        # By the last packets: what headers say is often missing, estimated or cut short.
        import av

        told = self._container.duration
        end: float | None = None
        if self.can_jump and told and self._seek(told / av.time_base):
            end = self._end()
        if end is None:
            self._rewind()
            end = self._end()
        end = max(0.0, end or 0.0)
        if (header := self._told()) - end > CUT_S:
            reason = "cut short: ends at %.2f s, not at %.2f s as its header has it"
            logger.warning(f"%s: {reason}", self._name, end, header)
        if not self._has_times:
            rate = 1 / self._step
            logger.warning("%s: has no times, taken as %.4g frames a second", self._name, rate)
        return round(end, 6)

    def _told(self) -> float:
        """How long it is by its header, where that is sure; else 0.

        MP4 has a list of all frames. Other headers tell of the longest stream, or what somebody
        has guessed: only that of a file which lacks its end is believed.
        """
        import av

        if self._container.format.name.startswith("mov,"):
            return float((self._stream.duration or 0) * self._base)
        return (self._container.duration or 0) / av.time_base if self._is_cut else 0.0

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
        except IndexError:  # PyAV trips at the end over streams that have appeared meanwhile
            pass
        yield None

    def _end(self) -> float | None:
        """When the last of the packets to come ends."""
        end = None
        for number, packet in enumerate(self._packets()):
            if packet is not None:
                start = next(self._times(packet), number * self._step)
                length = float((packet.duration or 0) * self._base) or 1 / (self.fps or inf)
                if start - (end or 0.0) < A_DAY_S:
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
        shots = self._unwind(chain([packet], packets), counted=False)
        yield from (shot for shot in shots if shot.time >= start)

    def _unwind(self, packets: Iterable["Packet | None"], counted: bool) -> Iterator[FFmpegShot]:
        """What the packets decode to. Frames out of order, which damage leaves, are dropped."""
        numbers: Iterator[int | None] = count() if counted else repeat(None)
        due: list[int] = []  # times of packets whose frame hasn't come out yet
        last = -inf
        clock = -self._step if counted else -inf  # what frames without a time go by
        for packet in packets:
            if packet is not None and packet.pts is not None and not packet.is_discard:
                due.append(packet.pts)
            for frame in self._decode(packet):
                due = self._still_due(due, frame.pts)
                times = list(self._times(frame)) or [clock + self._step]
                time = next((time for time in times if time > last), None)
                if time is not None:
                    aspect = self._stream.sample_aspect_ratio
                    yield FFmpegShot(round(time, 6), next(numbers), frame, aspect)
                    last = clock = time
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
