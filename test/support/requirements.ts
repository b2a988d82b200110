// Which tests hold which requirement of the first queue (seed 004), of the batch arrangement (seed 000) and of BigResultHandler (seed 002, docs/requirements.md). A test
// says it itself: its title begins with the ids. There is no list next to the tests that could say something else.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export interface Holding {
  readonly id: string;
  readonly tests: readonly { readonly file: string; readonly title: string }[];
}

/** How many of each there are; their numbers begin with 1. */
const COUNTS = { FR: 70, NFR: 10, AC: 15, UT: 5, IT: 4 } as const;

const FOLDERS = ["test", "src/testing"] as const;
const TITLE =
  /\b(?:test|specify|it|onBatches)\(\s*(["`])((?:(?:(?:N?FR|AC|UT|IT|BR)-\d{3}|CR-\d\d) )+)((?:\\.|(?!\1).)+)\1/g;

const root = fileURLToPath(new URL("../../", import.meta.url));

export const IDS: readonly string[] = Object.entries(COUNTS).flatMap(([prefix, count]) =>
  Array.from({ length: count }, (_, i) => `${prefix}-${String(i + 1).padStart(3, "0")}`),
);

const page = readFileSync(join(root, "docs/requirements.md"), "utf8");

/** The ids of the batch arrangement (seed 000), in the order of the table that says what each asks for. */
export const BATCH_IDS: readonly string[] = [...page.matchAll(/^\| (BR-\d{3}) +\|/gm)].map(([, id]) => id!);

/** Those of BigResultHandler (seed 002). */
export const COLLECTION_IDS: readonly string[] = [...page.matchAll(/^\| (CR-\d\d) +\|/gm)].map(([, id]) => id!);

/** Every id with the tests whose titles name it: by default those of the first queue. */
export function requirements(ids: readonly string[] = IDS): readonly Holding[] {
  const found = namedTitles();
  return ids.map((id) => ({
    id,
    tests: found.filter((title) => title.ids.includes(id)).map(({ file, title }) => ({ file, title })),
  }));
}

/** All titles of tests that name an id. */
export function namedTitles(): ReturnType<typeof titlesOf> {
  return FOLDERS.flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true, encoding: "utf8" })
      // The test of this file quotes titles that hold nothing.
      .filter((name) => name.endsWith(".ts") && name !== "requirements.test.ts")
      .flatMap((name) => titlesOf(`${folder}/${name}`, readFileSync(join(root, folder, name), "utf8"))),
  );
}

export function titlesOf(file: string, text: string): { file: string; ids: readonly string[]; title: string }[] {
  return [...text.matchAll(TITLE)].map(([, , ids, title]) => ({
    file,
    ids: ids!.trim().split(" "),
    title: title!,
  }));
}

/** Of every test in a file, also of one that names no id. */
export function allTitlesOf(text: string): readonly string[] {
  return [...text.matchAll(/^ *(?:test|specify)\(\s*(["`])((?:\\.|(?!\1).)+)\1/gm)].map(([, , title]) => title!);
}
