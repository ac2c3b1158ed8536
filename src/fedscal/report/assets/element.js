"use strict";

/** Make an element of the page; children that are text stay text. */
const element = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};
