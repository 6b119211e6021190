"""Recognises what a folder, an archive or a table of images holds, or refuses it, with what was found and the remedy.

In this order:

    masks                images/ with masks/, train/ with trainannot/, JPEGImages/ with SegmentationClass/, x.png with
                         x_mask.png
    a table              that names the images of the folder and has labels
    splits               train/, val/, test/ around folders of classes or inside of them
    folders of classes   if the folders are no parts of a data set, and hold images rather than folders
    names of files       cat.1.jpg, Abyssinian_12.jpg
    boxes                JPEGImages/ with Annotations/, images/ with labels/, or a COCO document: with --task detection,
                         and of images that are in no folders of classes

Facts that `LayoutOptions` states are not guessed. A folder that fits none of these is refused.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from mereo.data.box_folder import read_box_layout
from mereo.data.boxes import boxes_in
from mereo.data.contents import Contents, counted_names, name_of, suffix_of
from mereo.data.files import Layout
from mereo.data.folder import Below, class_layout
from mereo.data.layout_options import LayoutOptions
from mereo.data.mask_folder import CLASS_FILE, listed_names, masks_beside, read_mask_layout
from mereo.data.names import LISTS, PARTS, SPLITS, is_part, is_table, split_of, words_of
from mereo.data.outlines import read_outline_layout
from mereo.data.table import TableBeside, check_repeated, layout_of_rows, read_table, tables_beside
from mereo.data.targets import targets_layout
from mereo.data.trees import Tree, open_tree
from mereo.errors import UsageError

_DOCUMENTS = (
    ".pdf", ".doc", ".docx", ".xls", ".xlsx", ".ppt", ".pptx", ".odt", ".zip", ".rar", ".7z", ".gz", ".tar", ".dmg",
    ".exe", ".msi", ".deb", ".iso", ".mp3", ".wav", ".flac", ".m4a", ".mp4", ".mov", ".avi", ".mkv", ".apk", ".epub",
)  # fmt: skip
"""Suffixes that do not occur in image data sets: a folder with many such files is a folder of downloads."""
_NOTES = (".txt", ".csv", ".xml", ".json", ".yaml", ".yml", ".md", ".html")
"""Suffixes of notes about images, such as their boxes, that are left out of classes."""
_FEW, _SHOWN, _LEAST_OF_A_NAME = 0.1, 5, 3
"""Share of images outside of class folders that is left out; number of names shown; least images of a class by name."""
_CAMERAS = {"img", "image", "dsc", "dscn", "dscf", "pxl", "mvimg", "gopr", "photo", "pic", "picture", "frame", "scan"}
"""Words before a number in names of files that are of a camera or a program."""
_NUMBERED = re.compile(r"(\D*[^\W\d_])[\s_.(-]*\d+\)?")
_IDENTITY = re.compile(r"(-?\d+)_c\d+")
"""Names of images of persons or vehicles, as in Market-1501: identity, camera, ..."""
_JUNK = ("-1", "0000")
"""Identities in names of Market-1501 that stand for nobody."""


def read_layout(
    path: Path, *, evaluation: bool = False, unseen: bool = False, options: LayoutOptions | None = None
) -> Layout:
    """The splits that the folder, archive or table itself has, and the class names. No image is decoded.

    Args:
        path: of the folder, archive or table.
        evaluation: whether the images are for a trained network, which needs neither training images nor two classes.
        unseen: whether other splits may have classes that the training images do not have; they come last.
        options: what the user states of it.

    Raises:
        UsageError: for a folder with none of the known layouts, or with several.
    """
    options = options or LayoutOptions()
    options.check()
    if is_table(path):
        return read_table(path, evaluation=evaluation, unseen=unseen, options=options)
    tree = open_tree(path)
    links = "".join(f"; {link} is a link to {target}" for link, target in tree.links[:_SHOWN])
    recogniser = Recogniser(tree, options, evaluation=evaluation, unseen=unseen)
    layout = recogniser.read()
    return layout._replace(evidence=layout.evidence + recogniser.where + links)


class Recogniser:
    """Recognises the layout of one tree.

    Args:
        tree: the folder or archive.
        options: what the user states of it.
        evaluation, unseen: as in `read_layout`.
    """

    def __init__(self, tree: Tree, options: LayoutOptions, *, evaluation: bool, unseen: bool) -> None:
        contents, place = Contents(tree), ""
        while (deeper := self._around(contents, place)) is not None and not is_part(name_of(deeper)):
            if any(suffix_of(file) in LISTS for file in contents.direct.get(place, ())):
                break  # a table that may name the images in the folder
            place = deeper
        self.tree, self.contents = tree, contents
        if place:
            self.tree = Below(tree, place)
            self.contents = Contents(self.tree)
        self.where = (
            f" in {place}/" if len(tree.folders) - len(self.tree.folders) > place.count("/") + bool(place) else ""
        )
        self.options, self.evaluation, self.unseen = options, evaluation, unseen
        self.left_out: list[str] = []
        self.notes: set[str] = set()

    def read(self) -> Layout:
        """The layout, or a refusal."""
        contents, options = self.contents, self.options
        if not contents.images[""]:
            raise self._refusal(
                f"no images of any class ({contents.describe()})",
                "it must hold train/<class>/<images>, and may hold val/ and test/ of that form; or <class>/<images>",
            )
        if options.task == "detection":
            return self._boxes()
        stated = options.classes != "auto"
        if not stated and not options.label_column:
            masks = self._masks()
            if masks is not None:
                return masks
            if options.task == "segmentation" and boxes_in(contents):
                return read_outline_layout(contents, options.names, evaluation=self.evaluation)
        if options.classes.startswith("name"):
            return self._by_name(options.classes)
        tables, reasons = ([], []) if stated else self._tables()
        place = self._place()
        splits = self._splits(place)
        folders = [folder for split in (splits.values() or [place]) for folder in contents.with_images(split)]
        if tables and (not folders or not self._same_labels(tables)):
            parts = all(is_part(name_of(folder)) for folder in folders)
            if folders and not parts and not splits and not options.label_column:
                names, table = [name_of(folder) for folder in folders], tables[0].file
                raise self._refusal(
                    f"folders of images ({_shown(names)}) and {table} with other labels",
                    f"give {str(self.tree.path / table)!r}, or --classes top for the folders",
                )
            return self._of_tables(tables)
        if reasons and not tables and (options.label_column or len(folders) == 1):
            raise reasons[0]
        if options.label_column:
            raise self._refusal(
                f"no table that names its images, and label_column is {' '.join(options.label_column)!r}",
                "leave --label-column out, or give the table itself",
            )
        # Parts such as train/ and test/ without folders inside are no classes.
        inside = [contents.with_images(self._place(folder)) for folder in folders]
        # Nor is a folder alone, if there are boxes.
        parts = len(folders) == 1 or all(is_part(name_of(each)) or split_of(name_of(each)) for each in folders)
        if not stated and options.task is None and parts and boxes_in(contents):
            return self._boxes()
        flat = not stated and not splits and not any(inside) and all(is_part(name_of(folder)) for folder in folders)
        return self._flat(reasons) if flat else self._of_folders(place, splits, reasons)

    # -- where the images are

    @staticmethod
    def _around(contents: Contents, place: str) -> str | None:
        """The folder in a folder that alone holds images and folders of them, as in an archive of one; None for none.

        Empty folders may be classes without images, and a folder named like a split is one.
        """
        inside = contents.with_images(place)
        loose = len(contents.images_in(place))
        if len(inside) != 1 or loose > _FEW * contents.images[place] or name_of(inside[0]).lower() in SPLITS:
            return None
        others = [folder for folder in contents.folders(place) if folder != inside[0]]
        deeper = contents.with_images(inside[0]) and not contents.images_in(inside[0])
        return inside[0] if deeper and all(contents.count[folder] for folder in others) else None

    def _place(self, place: str = "") -> str:
        """The folder around the splits or classes: a folder such as Images/ is entered if it alone holds images."""
        contents = self.contents
        while True:
            deeper, inside = self._around(contents, place), contents.with_images(place)
            part = len(inside) == 1 and is_part(name_of(inside[0])) and not split_of(name_of(inside[0]))
            if deeper is None and not (part and len(contents.images_in(place)) <= _FEW * contents.images[place]):
                return place
            place = deeper or inside[0]

    def _splits(self, place: str) -> dict[str, str]:
        """The folder of each split that has folders of classes; empty without splits outside of classes.

        Raises:
            UsageError: for two folders of one split, such as val and valid: one would be left out.
        """
        contents = self.contents
        inside = contents.folders(place)
        exact = [f for f in inside if name_of(f).lower() in SPLITS and contents.folders(f)]
        if not exact:
            filled = contents.with_images(place)
            found = [split_of(name_of(folder)) for folder in filled]
            named = len(filled) > 1 and "train" in found and len({*found}) == len(found)
            exact = [f for f, split in zip(filled, found, strict=True) if split] if named else []
        flat = bool(exact) and not any(contents.with_images(self._place(folder)) for folder in exact)
        if flat and any(contents.images[folder] for folder in exact):
            return {}  # the names of the images, or a table, must state their classes
        places: dict[str, str] = {}
        for folder in exact:
            split = split_of(name_of(folder))
            if split in places:
                raise UsageError(
                    f"data is {str(self.tree.path)!r}, whose folders {name_of(places[split])} and {name_of(folder)} are"
                    f" both the {split} split; join them, or rename one."
                )
            if split is not None:
                places[split] = self._place(folder) if contents.images[folder] else folder
        if places:
            unused = [name_of(f) for f in contents.with_images(place) if f not in exact]
            self.left_out += [f"{name}/" for name in unused]
        return {split: places[split] for split in ("train", "validation", "test") if split in places}

    # -- masks and tables

    def _masks(self) -> Layout | None:
        """Images with masks; if folders of classes fit too, the task decides."""
        contents, task = self.contents, self.options.task
        folders = contents.with_images(self._place())
        classes = len(folders) > 1 and not any(is_part(name_of(folder)) for folder in folders)
        if classes and task in ("classification", "embedding"):
            return None
        if classes and task is None and masks_beside(contents):
            raise self._refusal(
                "folders of images, and masks beside most of them",
                "give --task segmentation, or --task classification, for which the masks are left out",
            )
        return read_mask_layout(contents, beside=task in (None, "segmentation"), evaluation=self.evaluation)

    def _boxes(self) -> Layout:
        return read_box_layout(self.contents, self.options.names, evaluation=self.evaluation)

    def _tables(self) -> tuple[list[TableBeside], list[UsageError]]:
        """The tables that name the images; several tables are of different splits."""
        contents = self.contents
        shallow = [
            file
            for file in self.tree.files
            if suffix_of(file) in LISTS and file.count("/") <= 1 and "submission" not in name_of(file).lower()
        ]
        if not shallow:
            return [], []
        tables, reasons = tables_beside(self.tree, shallow, contents.images_below(""), self.options)
        by_split: dict[str, list[TableBeside]] = defaultdict(list)
        for table in tables:
            by_split[table.rows[0].split if len({row.split for row in table.rows}) == 1 else ""].append(table)
        if any(len(each) > 1 for each in by_split.values()) or ("" in by_split and len(by_split) > 1):
            files = [table.file for table in tables]
            raise self._refusal(
                f"{len(files)} tables that name its images ({_shown(files)})",
                f"give one of them, such as {str(self.tree.path / files[0])!r}",
            )
        return tables, reasons

    def _same_labels(self, tables: Sequence[TableBeside]) -> bool:
        """Whether the labels of tables are the names of the folders of their images."""
        rows = [row for table in tables for row in table.rows]
        same = sum(row.label.strip().casefold() in row.image.casefold().split("/")[:-1] for row in rows)
        return 2 * same > len(rows)

    def _of_tables(self, tables: Sequence[TableBeside]) -> Layout:
        rows = [row for table in tables for row in table.rows]
        where, labels, targets = self.tree.path / tables[0].file, tables[0].label, tables[0].targets
        check_repeated(rows, where)
        if targets is not None:
            layout = targets_layout(rows, self.tree, where, targets, self.options, evaluation=self.evaluation)
        else:
            layout = layout_of_rows(
                rows, self.tree, where, listed_names(self.tree.path / CLASS_FILE), labels,
                evaluation=self.evaluation, unseen=self.unseen,
            )  # fmt: skip
        named = {row.image for row in rows} | {row.mask for row in rows}
        without = sum(file not in named for file in self.contents.images_below(""))
        notes = [f"and of {', '.join(table.file for table in tables[1:])}"] if len(tables) > 1 else []
        notes += [f"{without:,} images are in no table"] if without else []
        missing = sum(table.missing for table in tables)
        notes += [f"{missing:,} images of the table do not exist"] if missing else []
        return layout._replace(evidence="; ".join([layout.evidence, *notes]))

    # -- folders of classes

    def _of_folders(self, place: str, splits: Mapping[str, str], reasons: Sequence[UsageError]) -> Layout:
        inside = {} if splits or self.options.classes != "auto" else self._splits_inside(place)
        if inside:
            return self._finish(inside, "folders of classes with splits inside")
        self._check_mixed(place)
        found, stated = {}, self.options.classes != "auto"
        for split, folder in (splits or {"train": place}).items():
            if not stated:
                self._check_parts(folder, reasons)
                self._check_nested(folder, warned=not splits)
            classes = self._classes(folder)
            if any(classes.values()) or split == "train" or not self.contents.images[folder]:
                found[split] = classes
            else:
                self.left_out.append(f"{folder}/, whose images have no classes")
        how = {"leaf": "innermost folders as classes", "path": "folders in folders as classes"}
        evidence = how.get(self.options.classes, "a folder for each class")
        return self._finish(found, f"{evidence}, splits {', '.join(found)}" if splits else evidence)

    def _finish(self, splits: Mapping[str, Mapping[str, Sequence[str]]], evidence: str) -> Layout:
        if self.notes:
            self.left_out.append(
                f"{len(self.notes):,} notes beside images ({_shown(sorted(map(name_of, self.notes)))})"
            )
        if self.left_out:
            evidence += f"; left out: {_shown(self.left_out)}"
        return class_layout(self.tree, splits, evidence, evaluation=self.evaluation, unseen=self.unseen)

    def _class_folders(self, place: str) -> list[str]:
        """The folders of classes: those with images, and empty ones, which are reported."""
        contents = self.contents
        return [f for f in contents.folders(place) if contents.has_images(f) or not contents.count[f]]

    def _classes(self, place: str) -> dict[str, list[str]]:
        """The files of each class below a folder."""
        prefix, how = f"{place}/" if place else "", self.options.classes
        tops = {name_of(folder) for folder in self._class_folders(place)}
        beside = masks_beside(self.contents) if self.options.task == "classification" else {}
        masks = {mask for pairs in beside.values() for _, mask in pairs}
        classes: dict[str, list[str]] = {name: [] for name in tops} if how in ("auto", "top") else {}
        for file in self.tree.files:
            top, slash, rest = file.removeprefix(prefix).partition("/")
            if not slash or not file.startswith(prefix) or top not in tops:
                continue
            folder = f"{top}/{rest}".rpartition("/")[0]
            name = {"leaf": name_of(folder), "path": folder}.get(how, top)
            if suffix_of(file) in _NOTES:
                self.notes.add(file)
            if file in masks or file in self.notes:
                continue
            classes.setdefault(name, []).append(file)
        return classes

    def _splits_inside(self, place: str) -> dict[str, dict[str, list[str]]]:
        """The files of each class of each split, if splits are inside of all classes; empty for other folders."""
        contents = self.contents
        splits: dict[str, dict[str, list[str]]] = defaultdict(dict)
        for folder in contents.with_images(place):
            inside = contents.with_images(folder)
            known = {SPLITS.get(name_of(each).lower()) for each in inside}
            if contents.images_in(folder) or None in known or "train" not in known or len(known) < max(len(inside), 2):
                return {}
            if any(contents.with_images(each) for each in inside):
                return {}
            for each in inside:
                splits[SPLITS[name_of(each).lower()]][name_of(folder)] = contents.images_in(each)
        return splits

    def _check_mixed(self, place: str) -> None:
        """UsageError for files of many kinds, as in a folder of downloads, and for images beside the folders."""
        contents = self.contents
        kinds, images = contents.others_below(""), contents.images[""]
        documents = sum(count for suffix, count in kinds.items() if suffix in _DOCUMENTS)
        others = [f for f in contents.folders(place) if contents.count[f] and not contents.has_images(f)]
        strange = [name_of(f) for f in others if not {*contents.others_below(f)}.isdisjoint(_DOCUMENTS)]
        if documents > max(_FEW * images, 1) or strange:
            where = f", and {strange[0]!r} has no images" if strange else ""
            raise self._refusal(
                f"files of many kinds ({contents.describe()}{where})",
                "put the images alone into a folder, with a folder for each class",
            )
        loose = contents.images_in(place)
        if len(loose) > max(_FEW * images, 3):
            raise self._refusal(
                f"{len(loose):,} images, such as {loose[0]!r}, beside the folders of classes",
                "put them into <class>/<images>, or list them in a .csv with path and label",
            )
        self.left_out += [f"{len(loose):,} images beside the folders"] if loose else []
        self.left_out += [f"{name_of(f)}/ ({contents.describe(f)})" for f in others]

    def _check_parts(self, place: str, reasons: Sequence[UsageError]) -> None:
        """UsageError if folders are parts of a data set rather than classes, by their names."""
        names = [name_of(folder) for folder in self.contents.with_images(place)]
        parts = [name for name in names if is_part(name)]
        several = len({split_of(name) for name in parts} - {None}) > 1
        counted = len(names) > 1 and len({re.sub(r"\d+", "", name) for name in names}) == 1
        numbered = counted and not PARTS.isdisjoint(words_of(names[0]))
        if numbered and reasons:
            raise reasons[0]
        if numbered or (parts and (several or len(parts) == len(names) or any(not split_of(name) for name in parts))):
            boxes = boxes_in(self.contents)
            held = f", and boxes in {boxes[0]}" if boxes else ""
            raise self._refusal(
                f"folders that are parts of a data set rather than classes ({_shown(names)}{held})",
                _CROPS if boxes else _PARTS,
            )

    def _check_nested(self, place: str, *, warned: bool) -> None:
        """UsageError if folders hold folders rather than images, or data sets; a warning if one may.

        A folder is a data set if it has splits, or a folder named like another class. Folders that hold only folders of
        images are nested classes or data sets if there are several, unless other classes hold images themselves and the
        names of the folders recur: day and night in each are parts of a class.
        """
        contents = self.contents
        tops = contents.with_images(place)
        inside = {
            top: [f.removeprefix(f"{top}/") for f in self.tree.folders if f.startswith(f"{top}/")] for top in tops
        }
        inside = {top: [f for f in below if contents.images[f"{top}/{f}"]] for top, below in inside.items()}
        for top, below in inside.items():
            splits = [f for f in below if f.partition("/")[0].lower() in SPLITS]
            if any("/" in f for f in splits):
                sets = [t for t in tops if any("/" in f and f.partition("/")[0].lower() in SPLITS for f in inside[t])]
                raise self._data_sets(place, sets, "each has folders of splits")
            if len({SPLITS[f.lower()] for f in splits}) > 1:
                raise UsageError(
                    f"data is {str(self.tree.path)!r}, where splits are inside of some classes, such as"
                    f" {f'{name_of(top)}/{splits[0]}'!r}; they must be inside of all, or outside:"
                    f" {f'{splits[0]}/{name_of(top)}'!r}."
                )
        held = {top: [f for f in below if contents.images_in(f"{top}/{f}")] for top, below in inside.items()}
        nested = {top: below for top, below in held.items() if len(below) > 1 and not contents.images_in(top)}
        if nested and len(nested) == len(tops) > 1:
            raise self._data_sets(place, [*nested], "each has folders rather than images")
        if not warned:
            return
        names = {name_of(top) for top in tops}
        for top, below in nested.items():
            if shared := sorted({*below} & names):
                reason = f"it has a folder {shared[0]!r}, and so has {str(self.tree.path)!r}"
                raise self._data_sets(place, [top], reason)
        counts = Counter(name for below in nested.values() for name in below)
        if len(nested) > 1 and max(counts.values()) == 1:
            raise self._data_sets(place, [*nested], "each has folders rather than images, unlike the others")
        if nested:
            top, below = next(iter(nested.items()))
            _warn_of_parts(self.tree.path, top, below)

    def _data_sets(self, place: str, folders: Sequence[str], reason: str) -> UsageError:
        names = [name_of(folder) for folder in folders]
        ways = [f"give one of them, such as {str(self.tree.path / folders[0])!r}"]
        for how, what in (("leaf", "the innermost folders"), ("path", "folders in folders"), ("top", "the outermost")):
            found = [*Recogniser._classes(self._with(how), place)]
            ways.append(f"--classes {how} for {what} ({len(found):,}: {_shown(sorted(found), 2)})")
        return self._refusal(
            f"folders that are data sets or groups of classes ({_shown(names)}: {reason})", "; or ".join(ways)
        )

    def _with(self, classes: str) -> "Recogniser":
        """The same recogniser, but with `classes` found in another way."""
        other = object.__new__(Recogniser)
        other.__dict__ |= self.__dict__ | {"options": self.options._replace(classes=classes)}
        return other

    # -- images in no folders of classes

    def _flat(self, reasons: Sequence[UsageError]) -> Layout:
        contents = self.contents
        boxes = boxes_in(contents)
        if boxes is not None:
            raise self._refusal(f"{contents.images['']:,} images with boxes in {boxes[0]}", _CROPS)
        images = contents.images_below("")
        if reasons:
            raise reasons[0]
        stems = [PurePosixPath(file).stem for file in images]
        if all(_IDENTITY.match(stem) for stem in stems):
            return self._by_name("identity")
        labels = Counter(match[1] if (match := _NUMBERED.fullmatch(stem)) else "" for stem in self._training(images))
        plain = {label.lower().strip(" _.-") for label in labels}
        if len(labels) > 1 and "" not in labels and min(labels.values()) >= _LEAST_OF_A_NAME and not plain & _CAMERAS:
            return self._by_name("name")
        kinds = contents.others_below("")
        if sum(count for suffix, count in kinds.items() if suffix in _DOCUMENTS) > 1:
            raise self._refusal(
                f"files of many kinds ({contents.describe()})",
                "put the images alone into a folder, with a folder for each class",
            )
        ways = ["put them into <class>/<images>, or list them in a .csv with path and label"]
        for field in ("name", *(f"name:{number}" for number in range(1, 5))):
            found = Counter(filter(None, (_label(stem, field) for stem in stems)))
            if 2 <= len(found) <= len(stems) // 2 and sum(found.values()) == len(stems):
                ways.append(f"--classes {field} takes {counted_names(found, 3)} from the names of files")
        raise self._refusal(
            f"{len(images):,} images, such as {images[0]!r}, that are in no folder of a class", "; or ".join(ways)
        )

    def _training(self, images: Sequence[str]) -> list[str]:
        """The names of the images without a suffix, of the training images if there are splits."""
        known = [file for file in images if "/" in file and split_of(file.partition("/")[0]) == "train"]
        return [PurePosixPath(file).stem for file in known or images]

    def _by_name(self, field: str) -> Layout:
        """The classes that are part of the names of files, with the splits that their folders stand for."""
        splits: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        without = Counter[str]()
        for file in self.contents.images_below(""):
            label, split = _label(PurePosixPath(file).stem, field), self._split_of_file(file)
            if label is None or split is None or (field == "identity" and label in _JUNK):
                without[file.rpartition("/")[0]] += 1
            else:
                splits[split][label].append(file)
        if not splits:
            raise self._refusal(f"images whose names have no label, and classes is {field!r}", "leave --classes out")
        self.left_out += [f"{count:,} images of {folder or 'the folder'}" for folder, count in without.items()]
        what = {"identity": "identities", "name": "the names of files up to their number"}
        counts = Counter({label: len(files) for label, files in next(iter(splits.values())).items()})
        by = what.get(field, f"field {field[5:]} of the names of files")
        return self._finish(splits, f"{by} as classes ({counted_names(counts, 3)}), splits {', '.join(splits)}")

    def _split_of_file(self, file: str) -> str | None:
        """The split of a file by its folder: for training without a folder; None in a folder that is no split."""
        top, slash, _ = file.partition("/")
        tops = [name_of(folder) for folder in self.contents.with_images("")]
        return (split_of(top) if any(map(split_of, tops)) else "train") if slash else "train"

    def _refusal(self, seen: str, ways: str) -> UsageError:
        return UsageError(f"data is {str(self.tree.path)!r}, which has {seen}; {ways}.")


_PARTS = (
    "give one of them, list the images in a .csv with path and label or mask, or, if they are classes, give"
    " --classes top"
)
_CROPS = (
    "give --task detection, or cut the boxes out into a folder for each class with `mereo crops FOLDER --out TARGET`"
)


def _label(stem: str, field: str) -> str | None:
    """The label in the name of a file without its suffix; None for none."""
    if field == "identity":
        return match[1] if (match := _IDENTITY.match(stem)) else None
    if field != "name":
        parts = [part for part in re.split(r"[_.\s-]+", stem) if part]
        place = int(field[5:]) - 1
        return parts[place] if place < len(parts) > 1 else None
    match = re.match(r"(\D*[^\W\d_])[\s_.(-]*\d", stem)
    return match[1].strip(" _.-") if match else None


def _shown(names: Sequence[str], most: int = _SHOWN) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _warn_of_parts(path: Path, top: str, below: Sequence[str]) -> None:
    import warnings

    warnings.warn(
        f"{path} has the class {name_of(top)!r} of images in folders ({_shown(sorted(below))}), which all count as"
        f" {name_of(top)!r}. If they are classes, give --classes leaf; if {name_of(top)!r} is a data set of its own,"
        f" give {str(path / top)!r}.", UserWarning, stacklevel=2,
    )  # fmt: skip
