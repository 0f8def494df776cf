#include <tapegrad/core/check.h>
#include <tapegrad/models/config/config_json.h>
#include <tapegrad/models/config/fields.h>

namespace tg {
namespace {
struct Write {
  Json operator()(const NamedField& f) const { return f.get(); }
  template <class T> Json operator()(const T* x) const { return *x; }
};
struct Read {
  FieldName field;
  const Json& x;
  void operator()(const NamedField& f) const {
    expect_field(x.is_string(), field, x, "a name in quotes");
    f.set(x.get<std::string>());
  }
  template <class T> void operator()(T* to) const { read_field(field, x, *to); }
};
}  // namespace

std::string to_json(const ConfigFields& fields) {
  Json j = Json::object();
  for (const ConfigField& f : fields.list)
    if (const Json x = std::visit(Write{}, f.value); !f.optional || x != 0) j[f.name] = x;
  return detail::text_of(j, 2);
}

void detail::read_fields(std::string_view text, const ConfigText& source, const ConfigFields& fields) {
  const Json j = parse_json(text, source.op, source.name);
  TG_CHECK(j.is_object(), value, "[{}] {} holds {}. It must be an object: {{\"width\": 128, ...}}.", source.op,
           source.name, j.type_name());
  std::vector<std::string_view> known;
  for (const ConfigField& f : fields.list) {
    known.push_back(f.name);
    const Json* x = j.find(f.name);
    TG_CHECK(x || f.optional || !source.every_field, value,
             "[{}] {} has no '{}'. Every field must be there. Restore the file, or add what it was made with.",
             source.op, source.name, f.name);
    if (x) std::visit(Read{{source.op, f.name}, *x}, f.value);
  }
  check_keys(source.op, "", j, known);
}

}  // namespace tg
