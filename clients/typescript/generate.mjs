// Writes src/schemas.ts, the bodies of the API, from the OpenAPI document. With --check it only compares it.
import { readFileSync, writeFileSync } from "node:fs";
import openapiTS, { astToString } from "openapi-typescript";

const target = new URL("src/schemas.ts", import.meta.url);
const document = JSON.parse(readFileSync(new URL("../../docs/openapi.json", import.meta.url), "utf8"));
// The client has its routes by hand: of the document it needs the bodies.
const { openapi, info, components: { schemas } } = document;
const nodes = await openapiTS({ openapi, info, paths: {}, components: { schemas } }, {
  rootTypes: true, rootTypesNoSchemaPrefix: true, defaultNonNullable: false, emptyObjectsUnknown: true,
});
const text = `// Bodies of the API. Generated from docs/openapi.json by generate.mjs.\n\n${astToString(nodes)}`;
if (!process.argv.includes("--check")) {
  writeFileSync(target, text);
} else if (readFileSync(target, "utf8") !== text) {
  console.error("clients/typescript: src/schemas.ts is not what generate.mjs writes: run `npm run generate`");
  process.exit(1);
}
