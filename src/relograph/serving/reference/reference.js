// Draws the service's openapi.json as a page: nothing is fetched from anywhere else.

/** An element with properties and children; text is only ever text. */
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const TAGS = ["localizing", "maps", "changing", "operations"]; // in the order of reading

/** A sentence whose words in backticks are code. */
const prose = text => (text ?? "").split("`").map((part, index) => (index % 2 ? make("code", {}, part) : part));

const nameOf = reference => reference.split("/").pop();

/** What may stand in a place, as nodes: names of messages lead to them. */
function typeNodes(schema) {
  if (!schema) return ["anything"];
  if (schema.$ref) return [make("a", { href: `#${nameOf(schema.$ref)}` }, nameOf(schema.$ref))];
  const either = schema.anyOf ?? schema.oneOf;
  if (either) return either.flatMap((one, index) => (index ? [" or ", ...typeNodes(one)] : typeNodes(one)));
  if (schema.const !== undefined) return [make("code", {}, JSON.stringify(schema.const))];
  if (schema.enum) return [schema.enum.map(value => JSON.stringify(value)).join(" | ")];
  if (schema.prefixItems) return [`${schema.prefixItems.length} of `, ...typeNodes(schema.prefixItems[0])];
  if (schema.type === "array") return ["list of ", ...typeNodes(schema.items)];
  const limits = [
    ["minimum", "≥"], ["exclusiveMinimum", ">"], ["maximum", "≤"], ["exclusiveMaximum", "<"],
    ["minLength", "length ≥"], ["maxLength", "length ≤"],
  ].filter(([name]) => schema[name] !== undefined).map(([name, sign]) => `${sign} ${schema[name]}`);
  const kind = schema.format === "binary" ? "file" : schema.type ?? "anything";
  return [limits.length ? `${kind} (${limits.join(", ")})` : kind];
}

function table(heads, rows) {
  const head = make("tr", {}, ...heads.map(text => make("th", { scope: "col" }, text)));
  const body = rows.map(cells => make("tr", {}, ...cells.map(nodes => make("td", {}, ...[nodes].flat()))));
  return make("div", { className: "scroll" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}

/** The fields of a message. */
function fields(schema) {
  const required = new Set(schema.required);
  return table(["Field", "Is", "Otherwise", "Means"], Object.entries(schema.properties ?? {}).map(([name, field]) => [
    make("code", {}, name),
    typeNodes(field),
    required.has(name) || field.default === undefined ? (required.has(name) ? "required" : "") : JSON.stringify(field.default),
    prose(field.description),
  ]));
}

function operation(path, method, about) {
  const inside = make("div");
  if (about.security) inside.append(make("p", { className: "soft" }, "Takes a key: ", make("code", {}, "Authorization: Bearer KEY")));
  if (about.parameters?.length) {
    inside.append(make("h3", {}, "Parameters"), table(["Name", "In", "Is", "Otherwise"], about.parameters.map(one => [
      make("code", {}, one.name), one.in, typeNodes(one.schema),
      one.required ? "required" : JSON.stringify(one.schema.default ?? null),
    ])));
  }
  const bodies = Object.entries(about.requestBody?.content ?? {});
  if (bodies.length) {
    inside.append(make("h3", {}, "Body"), table(["Type", "Is"], bodies.map(([type, { schema }]) => [make("code", {}, type), typeNodes(schema)])));
  }
  inside.append(make("h3", {}, "Answers"), table(["Status", "When", "Is"], Object.entries(about.responses).map(([status, answer]) => [
    status, answer.description,
    Object.entries(answer.content ?? {}).flatMap(([type, { schema }]) => (schema?.$ref || schema?.type ? typeNodes(schema) : [make("code", {}, type)])),
  ])));
  const name = make("span", { className: `method ${method}` }, method.toUpperCase());
  const what = make("p", { className: "soft" }, ...prose(about.description));
  return make("details", {}, make("summary", {}, name, " ", make("code", {}, path), what), inside);
}

function draw(api) {
  const byTag = new Map();
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, about] of Object.entries(methods)) {
      const tag = about.tags?.[0] ?? "other";
      byTag.set(tag, [...(byTag.get(tag) ?? []), operation(path, method, about)]);
    }
  }
  const groups = TAGS.flatMap(tag => [make("h2", {}, tag), ...(byTag.get(tag) ?? [])]);
  document.getElementById("operations").replaceChildren(...groups);
  const schemas = Object.entries(api.components.schemas).sort(([a], [b]) => a.localeCompare(b));
  document.getElementById("messages").replaceChildren(make("h2", {}, "Messages"), ...schemas.map(([name, schema]) =>
    make("details", { id: name }, make("summary", {}, make("code", {}, name)), make("div", {}, make("p", {}, ...prose(schema.description)), fields(schema)))));
  document.getElementById("about").prepend(`relograph ${api.info.version}. `);
  open();
}

/** The message or address that the page's own address names is shown opened. */
function open() {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (named instanceof HTMLDetailsElement) named.open = true;
  named?.scrollIntoView();
}

addEventListener("hashchange", open);
try {
  const answer = await fetch("openapi.json");
  draw(await answer.json());
} catch (error) {
  document.getElementById("operations").replaceChildren(make("p", {}, `openapi.json could not be read: ${error.message}`));
}
