// README.md as it is published: the page on npm has none of the repository's other files, so its links and pictures name the repository, and how to work on it is left out. `prepack`
// writes it and `postpack` restores the one of the repository, which `git checkout README.md` does as well if a pack was killed in between.
// `--print` only prints it.
import { copyFileSync, existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../", import.meta.url));
const README = `${root}README.md`;
const KEPT = `${root}.while-packing.md`;

/** @type {{ repository: { url: string } }} */
const { repository } = JSON.parse(readFileSync(`${root}package.json`, "utf8"));
const [, place] = /github\.com\/([\w.-]+\/[\w-]+)\.git$/.exec(repository.url) ?? [];
if (place === undefined)
  throw new Error(`repository.url of package.json is ${repository.url}, which is not on GitHub.`);

/** @param {string} text */
function published(text) {
  return text
    .replace(/^## Work on Outlive\n[\s\S]*$/m, "The repository has the tests and the [changelog](CHANGELOG.md). MIT.\n")
    .replaceAll(/!\[([^\]]*)\]\((?!https?:)([^)]+)\)/g, `![$1](https://raw.githubusercontent.com/${place}/HEAD/$2)`)
    .replaceAll(/(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)/g, `[$1](https://github.com/${place}/blob/HEAD/$2)`);
}

const [, , mode] = process.argv;
if (mode === "--print") process.stdout.write(published(readFileSync(existsSync(KEPT) ? KEPT : README, "utf8")));
else if (mode === "--restore") {
  if (existsSync(KEPT)) renameSync(KEPT, README);
} else {
  // One that was left behind by a killed pack is the repository's.
  if (!existsSync(KEPT)) copyFileSync(README, KEPT);
  writeFileSync(README, published(readFileSync(KEPT, "utf8")));
}
